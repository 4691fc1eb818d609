#include "engine/network/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace gpt2 {
namespace {

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

} // namespace

void Connection::close() {
  socket_.close();
  outgoing_.clear(), sent_ = 0;
}

void Connection::use_macs(const Key& sent, const Key& received) {
  mac_.emplace(sent);
  reader_.expect_macs(received);
}

bool Connection::receive() {
  char bytes[16384];
  size_t room = reader_.room();
  bool anything = false;
  while (!ended_ && room > 0) {
    const ssize_t got = ::recv(socket_.descriptor(), bytes, std::min(sizeof bytes, room), 0);
    if (got > 0) {
      reader_.append({bytes, static_cast<size_t>(got)});
      room -= static_cast<size_t>(got);
      anything = true;
    } else if (got == 0 || (errno != EINTR && !would_block())) {
      ended_ = true;
    } else if (would_block()) {
      break;
    }
  }
  return anything;
}

std::optional<Frame> Connection::next() { return reader_.next(); }

void Connection::queue(FrameType type, std::string_view body) {
  outgoing_.append(to_bytes(type, body, mac_ ? &*mac_ : nullptr));
}

void Connection::flush() {
  while (has_unsent() && socket_.is_open()) {
    const ssize_t put = ::send(socket_.descriptor(), outgoing_.data() + sent_, outgoing_.size() - sent_, MSG_NOSIGNAL);
    if (put >= 0) {
      sent_ += static_cast<size_t>(put);
    } else if (would_block()) {
      return;
    } else if (errno != EINTR) {
      break; // the peer is gone: receive() reports it, after its last frames
    }
  }
  outgoing_.clear(), sent_ = 0;
}

pollfd Connection::awaited() const {
  return {socket_.descriptor(), static_cast<short>(has_unsent() ? POLLIN | POLLOUT : POLLIN), 0};
}

std::optional<Frame> wait_for_frame(Connection& connection, Clock::time_point deadline) {
  for (;;) {
    connection.flush();
    connection.receive();
    if (auto frame = connection.next()) return frame;
    if (connection.ended() || Clock::now() >= deadline) return std::nullopt;
    pollfd awaited = connection.awaited();
    wait_for_any({&awaited, 1}, deadline - Clock::now());
  }
}

} // namespace gpt2
