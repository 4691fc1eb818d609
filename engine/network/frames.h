// Frames as bytes: magic, type, size, body and, once both sides of a connection have proved that they know the secret,
// a MAC. Strangers can send anything: reading is bounded, and the first wrong byte ends it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/network/secret.h"

namespace gpt2 {

enum class FrameType : uint32_t {
  // ---- handshake (handshake.h): no MAC, small bodies ----
  challenge, // the one who was called: its nonce
  hello,     // the caller: its nonce, who it is, and proof
  welcome,   // the one who was called: proof
  // ---- joining ----
  joined,  // a rank to rank 0: it has read the welcome, and stays
  refused, // rank 0 to all: text; nobody trains
  roster,  // rank 0 to all, once all have joined
  // ---- training ----
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

constexpr size_t kHandshakeBytes = 1024; // of a frame without a MAC, at most

// The MACs of one direction. A frame's number is part of its MAC: no frame can be repeated, dropped or moved unnoticed.
class FrameSeal {
 public:
  explicit FrameSeal(const Key& key) : key_(key) {}
  std::string next(std::string_view header, std::string_view body);

 private:
  Key key_;
  uint64_t number_ = 0;
};

std::string to_bytes(FrameType type, std::string_view body, FrameSeal* seal); // null: no MAC

class FrameReader {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }
  size_t room() const; // how many bytes may be appended before next() is asked again
  std::optional<Frame> next();
  bool is_broken() const { return broken_; } // no frame follows: these are not bytes of the other side

  void expect_seals(const Key& key) { seal_.emplace(key); } // from the next frame on, which may also be large

 private:
  std::string bytes_;
  size_t taken_ = 0; // of them
  bool broken_ = false;
  std::optional<FrameSeal> seal_;
};

} // namespace gpt2
