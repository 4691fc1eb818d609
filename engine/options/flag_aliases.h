// The words of other trainers (llm.c, nanoGPT, Hugging Face's Trainer, Lightning): which of our flags or values means
// the same, or the sentence that helps where none does.
#pragma once

#include <span>
#include <string>

namespace gpt2 {

struct PeerFlag {
  const char* name;    // without dashes, underscores between words; llm.c's letters are one character
  const char* ours;    // the option that takes the same value; nullptr: none does
  const char* instead; // then: what to give, or why there is nothing to give
};

std::span<const PeerFlag> peer_flags();

// nullptr: no trainer we know has such a flag.
const PeerFlag* find_peer_flag(const std::string& name);

// Our word for a value of theirs, "bf16" for "bfloat16"; nullptr: none.
const char* find_peer_value(const std::string& word);

} // namespace gpt2
