// Text for readers that insist on UTF-8. A sampled model emits arbitrary bytes.
#pragma once

#include <string>
#include <string_view>

namespace gpt2 {

// Each byte that is not part of a well-formed UTF-8 sequence becomes U+FFFD; everything else stays as it is.
std::string to_valid_utf8(std::string_view bytes);

} // namespace gpt2
