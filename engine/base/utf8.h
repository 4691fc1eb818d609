// UTF-8 validation: no overlong forms, no surrogates, at most U+10FFFF (Unicode 15, table 3-7). Models and web pages
// emit arbitrary bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpt2 {

// Length of the longest prefix of `bytes` that is valid UTF-8.
size_t valid_utf8_prefix(std::string_view bytes);

// Replaces each byte that is not part of a well-formed sequence by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

} // namespace gpt2
