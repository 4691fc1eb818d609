// The built-in stories as text.
#pragma once

#include <string>
#include <vector>

#include "engine/text/sample_text.h"

namespace gpt2::testing {

inline std::vector<std::string> sample_stories(uint64_t seed, int64_t count) {
  const std::string end = "<|endoftext|>", all = sample_decode(sample_tokens(seed, count).tokens) + end;
  std::vector<std::string> stories;
  for (size_t begin = end.size(), stop; begin < all.size(); begin = stop + end.size()) {
    stop = all.find(end, begin);
    stories.push_back(all.substr(begin, stop - begin));
  }
  return stories;
}

} // namespace gpt2::testing
