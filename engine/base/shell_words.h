// Words as a POSIX shell reads and writes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpt2 {

// Cut at blanks; '...', "..." and backslash keep what they hold together. Nothing is expanded. Throws Error(usage) for
// a quote that is not closed, with `origin` in front.
std::vector<std::string> shell_words(std::string_view text, const std::string& origin);

std::string shell_word(const std::string& word); // in quotes, if a shell would read it as anything else

} // namespace gpt2
