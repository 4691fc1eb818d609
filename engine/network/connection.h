// A TCP connection that carries frames. Reads and writes never block, so one thread can serve many connections.
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
  bool is_open() const { return socket_.is_open(); }
  Socket take_socket() { return std::move(socket_); }
  void close();
  void use_macs(const Key& sent, const Key& received); // every later frame carries a MAC

  bool receive();              // reads available bytes up to the limits; true: any arrived
  std::optional<Frame> next(); // from the received bytes
  bool ended() const { return ended_ || reader_.is_broken(); } // by the peer, the network, or invalid bytes

  void queue(FrameType type, std::string_view body);
  void flush(); // sends until the kernel's buffer is full
  bool has_unsent() const { return sent_ < outgoing_.size(); }
  pollfd awaited() const; // for wait_for_any(): bytes to receive, or room for unsent ones

 private:
  Socket socket_;
  FrameReader reader_;
  std::optional<FrameMac> mac_;
  std::string outgoing_;
  size_t sent_ = 0; // bytes of outgoing_
  bool ended_ = false;
};

// Sends the queue and waits for the next frame. nullopt: the connection ended, or the deadline passed.
std::optional<Frame> wait_for_frame(Connection& connection, Clock::time_point deadline);

} // namespace gpt2
