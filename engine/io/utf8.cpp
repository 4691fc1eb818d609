#include "engine/io/utf8.h"

#include <cstdint>

namespace gpt2 {
namespace {

// Bytes of the well-formed sequence at the front of `bytes`, 0 if there is none (Unicode 15, table 3-7: no
// overlong forms, no surrogates, nothing above U+10FFFF).
size_t sequence_length(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (bytes.size() < length) return 0;
  const uint8_t lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < lowest || byte(1) > highest) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

} // namespace

std::string to_valid_utf8(std::string_view bytes) {
  std::string valid;
  valid.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = sequence_length(bytes);
    if (length == 0)
      valid += "\xEF\xBF\xBD"; // U+FFFD
    else
      valid += bytes.substr(0, length);
    bytes.remove_prefix(length ? length : 1);
  }
  return valid;
}

} // namespace gpt2
