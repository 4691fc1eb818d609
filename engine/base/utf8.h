// UTF-8, checked: no overlong forms, no surrogates, at most U+10FFFF (Unicode 15, table 3-7). A sampled model emits
// arbitrary bytes, and a web page holds what it likes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpt2 {

// Length of the longest prefix of `bytes` that is valid UTF-8.
size_t valid_utf8_prefix(std::string_view bytes);

// Bytes at the end of `bytes` that begin a well-formed sequence and do not finish it: 0 to 3.
size_t unfinished_utf8_suffix(std::string_view bytes);

// Each byte that is not part of a well-formed sequence becomes U+FFFD; everything else stays as it is.
std::string to_valid_utf8(std::string_view bytes);

} // namespace gpt2
