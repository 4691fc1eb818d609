// Texts from the option table: help, completion scripts, a man page.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/options/options.h"

namespace gpt2 {

// A flag that makes the program do something other than train.
struct Action {
  std::string name, value_name, help; // value_name as in OptionField
};
const std::vector<Action>& actions();

// The numbers of "auto" where they depend on the model: "0.0006 for gpt2, 0.003 for nano"; else empty.
std::string meaning_of_auto(const std::string& field, const Options& options);

// A line of help: the flag, then its meaning in a second column, or below a long flag.
std::string help_entry(const std::string& flag, const std::string& meaning, size_t columns);

std::string help_text(const Options& options, size_t columns);     // common options, with examples
std::string help_all_text(const Options& options, size_t columns); // every option
std::string completion_script(const std::string& shell);           // "bash" or "zsh"; throws Error(usage)
std::string man_page(const std::string& version);                  // roff

} // namespace gpt2
