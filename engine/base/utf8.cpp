#include "engine/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace gpt2 {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD"; // U+FFFD

// Bytes of the well-formed sequence that begins at `at`; 0 if none.
size_t sequence_length(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[at + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (bytes.size() - at < length) return 0;
  // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
  const uint8_t lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < lowest || byte(1) > highest) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

} // namespace

size_t valid_utf8_prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    uint64_t word; // most text is ASCII: eight characters at a time
    if (at + 8 <= bytes.size() && (std::memcpy(&word, bytes.data() + at, 8), (word & 0x8080808080808080ull) == 0)) {
      at += 8;
      continue;
    }
    const size_t length = sequence_length(bytes, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string valid;
  valid.reserve(bytes.size());
  for (;;) {
    const size_t good = valid_utf8_prefix(bytes);
    valid += bytes.substr(0, good);
    if (good == bytes.size()) return valid;
    valid += kReplacement;
    bytes.remove_prefix(good + 1);
  }
}

} // namespace gpt2
