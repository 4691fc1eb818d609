#include "tools/generate/text_stream.h"

#include <algorithm>
#include <utility>

#include "engine/base/utf8.h"

namespace gpt2 {

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
