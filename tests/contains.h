#pragma once

#include <string>

namespace gpt2 {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

} // namespace gpt2
