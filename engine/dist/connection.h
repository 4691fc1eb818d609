// A TCP connection that carries frames: a kind, and a body of bytes. Reading and writing take what the kernel gives and
// never block, so that one thread can serve many.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/dist/sockets.h"

namespace gpt2 {

enum class FrameType : uint32_t {
  // ---- joining ----
  hello,   // a rank to rank 0, or to a lower rank's mesh: who it is, and the token
  welcome, // the answer: proves the token
  joined,  // the rank has read it, and stays
  refused, // rank 0 to all: text; nobody trains
  roster,  // rank 0 to all, once all have joined
  // ---- afterwards ----
  message,
  heartbeat,
  failure, // a rank to rank 0: text of its own error
  verdict, // rank 0 to all: text; which rank has died, stalled or failed
  goodbye,
  farewell, // rank 0's answer to goodbye
};

struct Frame {
  FrameType type;
  std::string body;
};

class Connection {
 public:
  explicit Connection(Socket socket = Socket()) : socket_(std::move(socket)) {}

  const Socket& socket() const { return socket_; }
  Socket take_socket() { return std::move(socket_); }
  void close();
  void trust() { trusted_ = true; } // bodies may be large from now on

  bool receive();                       // all that has arrived; whether it was anything
  std::optional<Frame> next();          // of what was received
  bool ended() const { return ended_; } // by the peer, by the network, or by bytes that are no frame of ours

  void queue(FrameType type, std::string_view body);
  void flush(); // as much of the queue as the kernel takes
  bool has_unsent() const { return sent_ < outgoing_.size(); }

 private:
  Socket socket_;
  std::string incoming_, outgoing_;
  size_t taken_ = 0, sent_ = 0; // of them
  bool trusted_ = false, ended_ = false;
};

// Sends what is queued and waits for the next frame. Nothing: the connection ended, or the deadline passed.
std::optional<Frame> wait_for_frame(Connection& connection, Clock::time_point deadline, const Cancelled& cancelled);

} // namespace gpt2
