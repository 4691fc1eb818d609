// Completion scripts and the man page of the trainer, from its option table.
#pragma once

#include <string>

namespace gpt2 {

std::string completion_script(const std::string& shell); // "bash" or "zsh"; throws Error(usage)
std::string man_page(const std::string& version);        // roff

} // namespace gpt2
