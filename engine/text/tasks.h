// Multiple-choice tasks that a language model answers by likelihood: HellaSwag here, further kinds in tools/evaluate.
// Files are those that the authors and Hugging Face publish, one JSON object per line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace gpt2 {

// One continuation: the context, then the ending whose loss counts.
struct Candidate {
  std::vector<int32_t> tokens;
  int counted = 0;   // tokens of the ending
  int64_t bytes = 0; // of the ending's text, without the space before it
};

struct Task {
  std::vector<Candidate> candidates; // LAMBADA: one
  int right = 0;
};

// The first `limit` tasks of a file; 0: all. Throws Error(data) with file and line.
std::vector<Task> read_hellaswag(const std::string& path, const Tokenizer& tokenizer, int64_t limit = 0);

} // namespace gpt2
