#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpt2 {

// Splits a text at blanks as a POSIX shell does; '...', "..." and backslash quote. Expands nothing. Throws Error(usage)
// that begins with `origin` for a quote that is not closed.
std::vector<std::string> shell_words(std::string_view text, const std::string& origin);

} // namespace gpt2
