// Help from the option table. bin/manual makes completion scripts and the man page of the same texts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/options/option_fields.h"

namespace gpt2 {

inline constexpr char kPurpose[] =
    "Pretrains GPT-2, in FP8 on GPUs that support it. Without flags it trains on built-in stories.";
inline constexpr char kSwitches[] = "A switch --x is turned off by --no-x or --x=false.";

struct Example {
  std::string command, meaning;
};
const std::vector<Example>& examples();

// A flag that makes the program do something other than train.
struct Action {
  std::string name, value_name, help; // value_name as in OptionField
};
const std::vector<Action>& actions();

// The numbers of "auto" where they depend on the model: "0.0006 for gpt2, 0.003 for nano"; else empty.
std::string meaning_of_auto(const std::string& field, const Options& options);

// Meaning and default of an option; brief: the first clause of each.
std::string explanation(const OptionField& field, const Options& options, bool brief = false);

// A line of help: the flag, then its meaning in a second column, or below a long flag.
std::string help_entry(const std::string& flag, const std::string& meaning, size_t columns);

std::string help_text(const Options& options, size_t columns);     // common options, with examples
std::string help_all_text(const Options& options, size_t columns); // every option

} // namespace gpt2
