// Collectives over TCP for buffers in host memory. Each rank reduces one part of a buffer from the parts of all ranks,
// in rank order, so the bits do not depend on timing.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/float_formats.h"
#include "engine/network/sockets.h"
#include "engine/ranks/communicator.h"

namespace gpt2 {
namespace {

// Remaining bytes to and from one rank in an exchange.
struct Transfer {
  const char* send = nullptr;
  int64_t to_send = 0;
  char* receive = nullptr;
  int64_t to_receive = 0;
  bool is_done() const { return to_send == 0 && to_receive == 0; }
};

constexpr int64_t kChunkBytes = 1 << 20; // per exchange: bounds the receive buffers

class SocketCommunicator : public Communicator {
 public:
  explicit SocketCommunicator(RankGroup& group) : group_(group), sockets_(group.mesh()) {}

  int rank() const override { return group_.rank(); }
  int ranks() const override { return group_.ranks(); }
  double waited_seconds() const override { return waited_seconds_; }

  void reduce_scatter(float* buffer, int64_t count, GradExchange exchange_as) override {
    const auto part = [&](int rank) { return Range{rank * count, (rank + 1) * count}; };
    if (exchange_as == GradExchange::fp32) {
      reduce(buffer, part, add<float>);
    } else {
      reduce_as_bf16(buffer, count);
    }
  }

  void all_gather(void* buffer, int64_t bytes) override {
    gather(static_cast<char*>(buffer), [&](int rank) { return Range{rank * bytes, (rank + 1) * bytes}; });
  }

  void all_reduce_sum(float* values, int64_t count) override { all_reduce(values, count, add<float>); }
  void all_reduce_sum(double* values, int64_t count) override { all_reduce(values, count, add<double>); }
  void all_reduce_max(uint32_t* values, int64_t count) override {
    all_reduce(values, count, [](uint32_t& value, uint32_t other) { value = std::max(value, other); });
  }

 private:
  struct Range {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
  };

  template <class Value>
  static void add(Value& sum, Value other) {
    sum += other;
  }

  // Any count: parts differ by at most one element.
  template <class Value, class Combine>
  void all_reduce(Value* values, int64_t count, Combine combine) {
    const auto part = [&](int rank) { return Range{rank * count / ranks(), (rank + 1) * count / ranks()}; };
    reduce(values, part, combine);
    gather(values, part);
  }

  template <class Value, class Part>
  void gather(Value* values, const Part& part) {
    const Range mine = part(rank());
    exchange([&](int other) {
      const Range theirs = part(other);
      return transfer(values + mine.begin, mine.count(), values + theirs.begin, theirs.count());
    });
  }

  // Reduces this rank's part over all ranks, in rank order.
  template <class Value, class Part, class Combine>
  void reduce(Value* values, const Part& part, Combine combine) {
    const int64_t chunk = kChunkBytes / static_cast<int64_t>(sizeof(Value));
    const Range mine = part(rank());
    std::vector<Value> arrived(static_cast<size_t>(ranks() * std::min(chunk, mine.count())));
    int64_t longest = 0;
    for (int r = 0; r < ranks(); ++r) longest = std::max(longest, part(r).count());
    for (int64_t begin = 0; begin < longest; begin += chunk) {
      const auto size_in = [&](const Range& range) { return std::clamp<int64_t>(range.count() - begin, 0, chunk); };
      const int64_t size = size_in(mine);
      exchange([&](int other) {
        const Range theirs = part(other);
        return transfer(values + theirs.begin + begin, size_in(theirs), arrived.data() + other * size, size);
      });
      Value* const own = values + mine.begin + begin;
      std::copy_n(own, size, arrived.data() + rank() * size);
      std::copy_n(arrived.data(), size, own);
      for (int r = 1; r < ranks(); ++r) {
        const Value* const theirs = arrived.data() + r * size;
        for (int64_t i = 0; i < size; ++i) combine(own[i], theirs[i]);
      }
    }
  }

  // Every rank's values are rounded once, the own ones too, and summed in FP32: the sum does not depend on the owner.
  void reduce_as_bf16(float* buffer, int64_t count) {
    const int64_t chunk = std::min<int64_t>(kChunkBytes / 2, count);
    std::vector<uint16_t> rounded(static_cast<size_t>(ranks() * chunk)), arrived(rounded.size());
    for (int64_t begin = 0; begin < count; begin += chunk) {
      const int64_t size = std::min(chunk, count - begin);
      for (int r = 0; r < ranks(); ++r) {
        std::transform(buffer + r * count + begin, buffer + r * count + begin + size, rounded.data() + r * size,
                       bf16_encode);
      }
      exchange([&](int other) {
        return transfer(rounded.data() + other * size, size, arrived.data() + other * size, size);
      });
      std::copy_n(rounded.data() + rank() * size, size, arrived.data() + rank() * size);
      float* const own = buffer + rank() * count + begin;
      std::transform(arrived.data(), arrived.data() + size, own, bf16_decode);
      for (int r = 1; r < ranks(); ++r) {
        for (int64_t i = 0; i < size; ++i) own[i] += bf16_decode(arrived[static_cast<size_t>(r * size + i)]);
      }
    }
  }

  template <class Value>
  static Transfer transfer(const Value* send, int64_t to_send, Value* receive, int64_t to_receive) {
    constexpr int64_t kSize = sizeof(Value);
    return {reinterpret_cast<const char*>(send), to_send * kSize, reinterpret_cast<char*>(receive), to_receive * kSize};
  }

  // Sends to and receives from all other ranks concurrently, so no deadlock is possible.
  template <class TransferWith>
  void exchange(TransferWith transfer_with) {
    const auto scope = group_.waiting();
    const Clock::time_point start = Clock::now();
    std::vector<Transfer> transfers(static_cast<size_t>(ranks()));
    for (int other = 0; other < ranks(); ++other) {
      if (other != rank()) transfers[static_cast<size_t>(other)] = transfer_with(other);
    }
    while (wait_for_any(transfers)) {
      for (int other = 0; other < ranks(); ++other) advance(other, transfers[static_cast<size_t>(other)]);
    }
    waited_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  }

  // False: all transfers are done.
  bool wait_for_any(const std::vector<Transfer>& transfers) {
    group_.check();
    descriptors_.clear();
    for (size_t other = 0; other < transfers.size(); ++other) {
      const Transfer& transfer = transfers[other];
      if (transfer.is_done()) continue;
      const int events = (transfer.to_send > 0 ? POLLOUT : 0) | (transfer.to_receive > 0 ? POLLIN : 0);
      descriptors_.push_back({sockets_[other], static_cast<short>(events), 0});
    }
    constexpr int kMilliseconds = 50; // between two calls of RankGroup::check()
    if (!descriptors_.empty()) ::poll(descriptors_.data(), descriptors_.size(), kMilliseconds);
    return !descriptors_.empty();
  }

  void advance(int other, Transfer& transfer) {
    const int socket = sockets_[static_cast<size_t>(other)];
    while (transfer.to_send > 0) {
      const ssize_t sent = ::send(socket, transfer.send, static_cast<size_t>(transfer.to_send), MSG_NOSIGNAL);
      if (sent < 0 && would_block(other)) break;
      transfer.send += std::max<ssize_t>(sent, 0), transfer.to_send -= std::max<ssize_t>(sent, 0);
    }
    while (transfer.to_receive > 0) {
      const ssize_t got = ::recv(socket, transfer.receive, static_cast<size_t>(transfer.to_receive), 0);
      if (got == 0) lost(other);
      if (got < 0 && would_block(other)) break;
      transfer.receive += std::max<ssize_t>(got, 0), transfer.to_receive -= std::max<ssize_t>(got, 0);
    }
  }

  bool would_block(int other) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
    if (errno != EINTR) lost(other);
    return false;
  }

  // The control channel reports the reason, mostly at once.
  [[noreturn]] void lost(int other) {
    group_.check_within(std::chrono::seconds(2));
    throw Error(ExitCode::communication, "the connection to " + group_.name_of(other) + " broke off",
                "read the last lines of that rank's output; docs/cluster.md explains each message");
  }

  RankGroup& group_;
  const std::span<const int> sockets_; // by rank
  std::vector<pollfd> descriptors_;
  double waited_seconds_ = 0;
};

} // namespace

std::unique_ptr<Communicator> make_socket_communicator(RankGroup& group) {
  return std::make_unique<SocketCommunicator>(group);
}

} // namespace gpt2
