// Flags of other trainers (llm.c, nanoGPT, Lightning, Hugging Face's Trainer and Accelerate): the option of the same
// meaning, a note, or the sentence of a refusal.
#pragma once

#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt2 {

enum class AliasKind {
  renamed,        // sets `option` to the value of the flag
  implied,        // a switch; on, it sets `option` to `value`
  without_effect, // a note "... has no effect: `sentence`", unless the flag is off
  unsupported,    // exit 2 with `sentence` as the hint
  accumulation,   // target_batch_size = batch_size x the value x ranks
  dataset_part,   // a sample of the data set that another flag names
};

struct FlagAlias {
  const char* names; // with spaces between; no dashes, underscores between words; llm.c's letters are one character
  AliasKind kind;
  bool is_switch = false;
  const char* option = nullptr;
  const char* value = nullptr;
  const char* sentence = nullptr;
};

std::span<const FlagAlias> flag_aliases();

const FlagAlias* find_flag_alias(const std::string& name); // nullptr: unknown

// The value that an error suggests, "bf16" for "bfloat16"; nullptr: none. `word` is in lower case.
const char* suggested_value(const std::string& word);

struct GivenAlias {
  const FlagAlias* alias = nullptr; // nullptr: not given
  std::string shown, value;         // "--gradient_accumulation_steps", "8"
};

// Aliases that other options complete.
struct Unresolved {
  GivenAlias accumulation, dataset_part;
};

// The option that an alias sets and its value; an empty option: none. `dashes` precede our names in notes.
std::pair<std::string, std::string> translate(const GivenAlias& given, const std::string& dashes,
                                              std::vector<std::string>& notes, Unresolved& unresolved);

// --split_name: sets the `dataset` of the same source, and adds it to the `given` options. Throws Error(usage).
void take_dataset_part(const GivenAlias& part, std::string& dataset, std::set<std::string>& given,
                       std::vector<std::string>& notes);

} // namespace gpt2
