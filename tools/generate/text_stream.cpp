#include "tools/generate/text_stream.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/base/utf8.h"

namespace gpt2 {
namespace {

// Bytes of an incomplete well-formed sequence at the end: 0 to 3. Completes the sequence with valid continuation bytes
// and validates it: 0x80, or as second byte 0xA0 after 0xE0 and 0x90 after 0xF0.
size_t unfinished_utf8_suffix(std::string_view bytes) {
  for (size_t length = 1; length <= 3 && length <= bytes.size(); ++length) {
    std::string sequence(bytes.substr(bytes.size() - length));
    const auto lead = static_cast<uint8_t>(sequence[0]);
    if ((lead & 0xC0) == 0x80) continue; // a continuation byte
    const size_t whole = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (whole <= length) return 0;
    if (length == 1) sequence += lead == 0xE0 ? '\xA0' : lead == 0xF0 ? '\x90' : '\x80';
    sequence.resize(whole, '\x80');
    return valid_utf8_prefix(sequence) == whole ? length : 0;
  }
  return 0;
}

} // namespace

TextStream::TextStream(std::vector<std::string> stop_strings) : stop_strings_(std::move(stop_strings)) {}

std::string TextStream::take(size_t count) {
  const std::string shown = to_valid_utf8(std::string_view(held_).substr(0, count));
  held_.erase(0, count);
  return shown;
}

size_t TextStream::partial_stop_string() const {
  const std::string_view held = held_;
  size_t longest = 0;
  for (const std::string_view stop : stop_strings_) {
    size_t length = std::min(stop.size() - 1, held.size());
    while (length > longest && !held.ends_with(stop.substr(0, length))) --length;
    longest = std::max(longest, length);
  }
  return longest;
}

std::string TextStream::add(std::string_view bytes) {
  if (stopped_) return "";
  held_ += bytes;
  size_t first = std::string::npos;
  for (const std::string& stop : stop_strings_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    held_.resize(first);
    return finish();
  }
  const size_t certain = held_.size() - partial_stop_string();
  return take(certain - unfinished_utf8_suffix(std::string_view(held_).substr(0, certain)));
}

std::string TextStream::finish() { return take(held_.size()); }

} // namespace gpt2
