// Flags and values of other trainers (llm.c, nanoGPT, Hugging Face's Trainer, Lightning): our flag or value with the
// same meaning, or a hint.
#pragma once

#include <span>
#include <string>

namespace gpt2 {

struct FlagAlias {
  const char* name;    // without dashes, underscores between words; llm.c's letters are one character
  const char* ours;    // the option that takes the same value; nullptr: none
  const char* instead; // hint if `ours` is null: what to use, or why nothing is needed
};

std::span<const FlagAlias> flag_aliases();

// nullptr: unknown.
const FlagAlias* find_flag_alias(const std::string& name);

// "bf16" for "bfloat16"; nullptr: none.
const char* find_value_alias(const std::string& word);

} // namespace gpt2
