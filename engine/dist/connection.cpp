#include "engine/dist/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpt2 {
namespace {

struct Header {
  uint32_t magic, type, size;
};
constexpr uint32_t kMagic = 0x4B523247; // "G2RK"
constexpr uint32_t kHandshakeLimit = 1 << 12, kBodyLimit = 1 << 30;
constexpr size_t kKeptBytes = 1 << 20; // of frames that are done with
constexpr Clock::duration kSlice = std::chrono::milliseconds(50);

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

} // namespace

void Connection::close() {
  socket_.close();
  outgoing_.clear(), sent_ = 0;
}

bool Connection::receive() {
  char bytes[16384];
  const size_t before = incoming_.size();
  while (!ended_) {
    const ssize_t got = ::recv(socket_.descriptor(), bytes, sizeof bytes, 0);
    if (got > 0) {
      incoming_.append(bytes, static_cast<size_t>(got));
    } else if (got == 0 || (errno != EINTR && !would_block())) {
      ended_ = true;
    } else if (would_block()) {
      break;
    }
  }
  return incoming_.size() > before;
}

std::optional<Frame> Connection::next() {
  Header header;
  const size_t available = incoming_.size() - taken_;
  // The first wrong byte gives a stranger away: nobody waits for the rest of a header.
  if (std::memcmp(incoming_.data() + taken_, &kMagic, std::min(available, sizeof kMagic)) != 0) ended_ = true;
  if (available < sizeof header) return std::nullopt;
  std::memcpy(&header, incoming_.data() + taken_, sizeof header);
  if (header.magic != kMagic || header.size > (trusted_ ? kBodyLimit : kHandshakeLimit)) {
    incoming_.clear(), taken_ = 0, ended_ = true;
    return std::nullopt;
  }
  if (available < sizeof header + header.size) return std::nullopt;
  Frame frame{static_cast<FrameType>(header.type), incoming_.substr(taken_ + sizeof header, header.size)};
  taken_ += sizeof header + header.size;
  if (taken_ == incoming_.size() || taken_ > kKeptBytes) incoming_.erase(0, taken_), taken_ = 0;
  return frame;
}

void Connection::queue(FrameType type, std::string_view body) {
  const Header header{kMagic, static_cast<uint32_t>(type), static_cast<uint32_t>(body.size())};
  outgoing_.append(reinterpret_cast<const char*>(&header), sizeof header);
  outgoing_.append(body);
}

void Connection::flush() {
  while (has_unsent() && socket_.is_open()) {
    const ssize_t put = ::send(socket_.descriptor(), outgoing_.data() + sent_, outgoing_.size() - sent_, MSG_NOSIGNAL);
    if (put >= 0) {
      sent_ += static_cast<size_t>(put);
    } else if (would_block()) {
      return;
    } else if (errno != EINTR) {
      break; // the peer has gone: receive() will say so, after its last words
    }
  }
  outgoing_.clear(), sent_ = 0;
}

std::optional<Frame> wait_for_frame(Connection& connection, Clock::time_point deadline, const Cancelled& cancelled) {
  for (;;) {
    connection.flush();
    connection.receive();
    if (auto frame = connection.next()) return frame;
    const Clock::duration left = deadline - Clock::now();
    if (connection.ended() || left <= Clock::duration::zero() || (cancelled && cancelled())) return std::nullopt;
    const short events = connection.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    wait_until_ready(connection.socket().descriptor(), events, std::min(left, kSlice));
  }
}

} // namespace gpt2
