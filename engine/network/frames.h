// Frames as bytes: magic, type, size, body and, after the handshake, a MAC. Unauthenticated peers can send anything:
// reading is bounded, and ends at the first wrong byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/network/secret.h"

namespace gpt2 {

enum class FrameType : uint32_t {
  // ---- handshake (handshake.h): no MAC, small bodies ----
  challenge, // server: its nonce
  hello,     // client: its nonce, identity and proof
  welcome,   // server: proof
  // ---- joining ----
  joined,  // a rank to rank 0, after the welcome
  refused, // rank 0 to all: text; the job does not start
  roster,  // rank 0 to all, after all have joined
  // ---- training ----
  message,
  heartbeat,
  failure, // a rank to rank 0: text of its error
  verdict, // rank 0 to all: text; which rank has died, stalled or failed
  goodbye,
  farewell, // rank 0's answer to goodbye
};

struct Frame {
  FrameType type;
  std::string body;
};

constexpr size_t kHandshakeBytes = 1024; // largest body of a frame without a MAC

// MACs of one direction. The MAC covers the frame's number: a repeated, dropped or reordered frame is detected.
class FrameMac {
 public:
  explicit FrameMac(const Key& key) : key_(key) {}
  std::string next(std::string_view header, std::string_view body);

 private:
  Key key_;
  uint64_t number_ = 0;
};

std::string to_bytes(FrameType type, std::string_view body, FrameMac* mac); // null: no MAC

class FrameReader {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }
  size_t room() const; // bytes that may be appended before the next call of next()
  std::optional<Frame> next();
  bool is_broken() const { return broken_; } // invalid bytes: no frame follows

  void expect_macs(const Key& key) { mac_.emplace(key); } // from the next frame on; large frames are allowed then

 private:
  std::string bytes_;
  size_t taken_ = 0; // bytes of bytes_
  bool broken_ = false;
  std::optional<FrameMac> mac_;
};

} // namespace gpt2
