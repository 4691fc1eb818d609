// A TCP connection that carries frames. Reading and writing take what the kernel gives and never block, so that one
// thread can serve many.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/network/frames.h"
#include "engine/network/sockets.h"

namespace gpt2 {

class Connection {
 public:
  explicit Connection(Socket socket = Socket()) : socket_(std::move(socket)) {}

  const Socket& socket() const { return socket_; }
  Socket take_socket() { return std::move(socket_); }
  void close();
  void seal(const Key& sent, const Key& received); // every later frame carries a MAC

  bool receive();              // what has arrived, as far as the limits allow; whether it was anything
  std::optional<Frame> next(); // of what was received
  bool ended() const { return ended_ || reader_.is_broken(); } // by the peer, the network, or bytes that are no frame

  void queue(FrameType type, std::string_view body);
  void flush(); // as much of the queue as the kernel takes
  bool has_unsent() const { return sent_ < outgoing_.size(); }

 private:
  Socket socket_;
  FrameReader reader_;
  std::optional<FrameSeal> seal_;
  std::string outgoing_;
  size_t sent_ = 0; // of it
  bool ended_ = false;
};

// Sends what is queued and waits for the next frame. Nothing: the connection ended, or the deadline passed.
std::optional<Frame> wait_for_frame(Connection& connection, Clock::time_point deadline, const Cancelled& cancelled);

} // namespace gpt2
