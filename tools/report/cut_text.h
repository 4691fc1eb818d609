#pragma once

#include <cstddef>
#include <string>

namespace gpt2 {

enum class Cut { begin, end };
std::string cut_to(const std::string& utf8, size_t columns, Cut cut); // "..." replaces what is cut

} // namespace gpt2
