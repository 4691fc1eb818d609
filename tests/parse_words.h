// A command line of the trainer, word by word.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/options/parse_options.h"

namespace gpt2 {

inline CommandLine parse_words(const std::vector<std::string>& words) {
  std::vector<const char*> argv{"train_gpt2_fp8"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  const auto line = parse_options(static_cast<int>(argv.size()), argv.data(), "version");
  REQUIRE(line.has_value());
  return *line;
}

} // namespace gpt2
