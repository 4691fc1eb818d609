// Larger test data that is not part of the tree: $GPT2_SHARED, else ../shared beside it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace gpt2 {

// The path of a file of that data, or "" if it is not on this machine (tests run in the root of the tree).
inline std::string find_shared(const std::string& name) {
  const char* named = std::getenv("GPT2_SHARED");
  const auto path = std::filesystem::path(named && *named ? named : "../shared") / name;
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? path.string() : "";
}

} // namespace gpt2
