#include "engine/network/frames.h"

#include <algorithm>
#include <cstring>

namespace gpt2 {
namespace {

struct Header {
  uint32_t magic, type, size;
};
constexpr uint32_t kMagic = 0x4B523247; // "G2RK"
constexpr size_t kAuthenticatedBytes = 1 << 30;
constexpr size_t kReadAhead = 1 << 22; // per receive(): one peer does not delay the others
constexpr size_t kKeptBytes = 1 << 20; // of consumed frames, before they are erased

std::string_view view(const Header& header) { return {reinterpret_cast<const char*>(&header), sizeof header}; }

} // namespace

std::string FrameMac::next(std::string_view header, std::string_view body) {
  const uint64_t number = number_++;
  return hmac(key_, {{reinterpret_cast<const char*>(&number), sizeof number}, header, body});
}

std::string to_bytes(FrameType type, std::string_view body, FrameMac* mac) {
  const Header header{kMagic, static_cast<uint32_t>(type), static_cast<uint32_t>(body.size())};
  std::string bytes(view(header));
  bytes.append(body);
  if (mac) bytes.append(mac->next(view(header), body));
  return bytes;
}

size_t FrameReader::room() const {
  if (mac_) return kReadAhead;
  const size_t most = sizeof(Header) + kHandshakeBytes, waiting = bytes_.size() - taken_;
  return broken_ ? 0 : most - std::min(most, waiting);
}

std::optional<Frame> FrameReader::next() {
  Header header;
  const std::string_view bytes = std::string_view(bytes_).substr(taken_);
  // The first wrong byte rejects a foreign client, without waiting for a whole header.
  if (std::memcmp(bytes.data(), &kMagic, std::min(bytes.size(), sizeof kMagic)) != 0) broken_ = true;
  if (broken_ || bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  broken_ = header.size > (mac_ ? kAuthenticatedBytes : kHandshakeBytes) ||
            header.type > static_cast<uint32_t>(FrameType::farewell);
  const size_t whole = sizeof header + header.size + (mac_ ? kMacBytes : 0);
  if (broken_ || bytes.size() < whole) return std::nullopt;
  const std::string_view body = bytes.substr(sizeof header, header.size);
  if (mac_ &&
      !same_in_constant_time(mac_->next(view(header), body), bytes.substr(sizeof header + header.size, kMacBytes))) {
    broken_ = true;
    return std::nullopt;
  }
  Frame frame{static_cast<FrameType>(header.type), std::string(body)};
  taken_ += whole;
  if (taken_ == bytes_.size() || taken_ > kKeptBytes) bytes_.erase(0, taken_), taken_ = 0;
  return frame;
}

} // namespace gpt2
