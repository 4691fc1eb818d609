#pragma once

#include <string>

namespace gpt2 {

std::string shell_quote(const std::string& word); // in quotes if a POSIX shell needs them to read it as one word

} // namespace gpt2
