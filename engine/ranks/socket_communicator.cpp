// Collectives over TCP for buffers in host memory. Each rank reduces one part of a buffer from the parts of all ranks,
// in rank order, so the bits do not depend on timing.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/float_formats.h"
#include "engine/network/sockets.h"
#include "engine/ranks/communicator.h"

namespace gpt2 {
namespace {

// Remaining bytes to and from one rank in an exchange.
struct Transfer {
  std::span<const std::byte> to_send;
  std::span<std::byte> to_receive;
};

// A float on the wire in BF16.
struct Bf16 {
  Bf16() = default;
  Bf16(float value) : bits(bf16_encode(value)) {}
  operator float() const { return bf16_decode(bits); }
  uint16_t bits = 0;
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
      reduce<float>(buffer, part, std::plus<>());
    } else {
      reduce<Bf16>(buffer, part, std::plus<>());
    }
  }

  void all_gather(void* buffer, int64_t bytes) override {
    gather(static_cast<char*>(buffer), [&](int rank) { return Range{rank * bytes, (rank + 1) * bytes}; });
  }

  void all_reduce_sum(float* values, int64_t count) override { all_reduce(values, count, std::plus<>()); }
  void all_reduce_sum(double* values, int64_t count) override { all_reduce(values, count, std::plus<>()); }
  void all_reduce_max(uint32_t* values, int64_t count) override {
    all_reduce(values, count, [](uint32_t a, uint32_t b) { return std::max(a, b); });
  }

 private:
  struct Range {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
  };

  // Any count: parts differ by at most one element.
  template <class Value, class Combine>
  void all_reduce(Value* values, int64_t count, Combine combine) {
    const auto part = [&](int rank) { return Range{rank * count / ranks(), (rank + 1) * count / ranks()}; };
    reduce<Value>(values, part, combine);
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

  // Reduces this rank's part over all ranks, in rank order. Every rank's values are rounded to `Wire`, the own ones
  // too, and combined as `Value`: the result does not depend on the owner.
  template <class Wire, class Value, class Part, class Combine>
  void reduce(Value* values, const Part& part, Combine combine) {
    const Range mine = part(rank());
    int64_t longest = 0;
    for (int r = 0; r < ranks(); ++r) longest = std::max(longest, part(r).count());
    const int64_t chunk = std::min(longest, kChunkBytes / static_cast<int64_t>(sizeof(Wire)));
    std::vector<Wire> sent(static_cast<size_t>(ranks() * chunk)), arrived(sent.size()); // a chunk per rank
    for (int64_t begin = 0; begin < longest; begin += chunk) {
      const auto size_of = [&](int r) { return std::clamp<int64_t>(part(r).count() - begin, 0, chunk); };
      for (int r = 0; r < ranks(); ++r) {
        std::copy_n(values + part(r).begin + begin, size_of(r), sent.data() + r * chunk);
      }
      const int64_t size = size_of(rank());
      exchange([&](int other) {
        return transfer(sent.data() + other * chunk, size_of(other), arrived.data() + other * chunk, size);
      });
      std::copy_n(sent.data() + rank() * chunk, size, arrived.data() + rank() * chunk);
      Value* const own = values + mine.begin + begin;
      std::copy_n(arrived.data(), size, own);
      for (int r = 1; r < ranks(); ++r) {
        const Wire* const theirs = arrived.data() + r * chunk;
        for (int64_t i = 0; i < size; ++i) own[i] = combine(own[i], static_cast<Value>(theirs[i]));
      }
    }
  }

  template <class Value>
  static Transfer transfer(const Value* send, int64_t to_send, Value* receive, int64_t to_receive) {
    return {std::as_bytes(std::span(send, static_cast<size_t>(to_send))),
            std::as_writable_bytes(std::span(receive, static_cast<size_t>(to_receive)))};
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
    for (std::vector<pollfd> descriptors;; descriptors.clear()) {
      group_.check();
      for (size_t other = 0; other < transfers.size(); ++other) {
        const auto& [to_send, to_receive] = transfers[other];
        const int events = (to_send.empty() ? 0 : POLLOUT) | (to_receive.empty() ? 0 : POLLIN);
        if (events != 0) descriptors.push_back({sockets_[other].descriptor(), static_cast<short>(events), 0});
      }
      if (descriptors.empty()) break;
      wait_for_any(descriptors, std::chrono::milliseconds(50)); // then check again
      for (int other = 0; other < ranks(); ++other) advance(other, transfers[static_cast<size_t>(other)]);
    }
    waited_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  }

  void advance(int other, Transfer& transfer) {
    const int socket = sockets_[static_cast<size_t>(other)].descriptor();
    auto& [to_send, to_receive] = transfer;
    while (!to_send.empty()) {
      const ssize_t sent = ::send(socket, to_send.data(), to_send.size(), MSG_NOSIGNAL);
      if (sent < 0 && would_block(other)) break;
      to_send = to_send.subspan(static_cast<size_t>(std::max<ssize_t>(sent, 0)));
    }
    while (!to_receive.empty()) {
      const ssize_t got = ::recv(socket, to_receive.data(), to_receive.size(), 0);
      if (got == 0) lost(other);
      if (got < 0 && would_block(other)) break;
      to_receive = to_receive.subspan(static_cast<size_t>(std::max<ssize_t>(got, 0)));
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
  const std::span<const Socket> sockets_; // by rank
  double waited_seconds_ = 0;
};

} // namespace

std::unique_ptr<Communicator> make_socket_communicator(RankGroup& group) {
  return std::make_unique<SocketCommunicator>(group);
}

} // namespace gpt2
