// Questions that a language model answers by what it finds likely: HellaSwag, ARC, PIQA, Winogrande (which of these
// endings?) and LAMBADA (which last word?), as their authors and Hugging Face publish them, one JSON object a line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/enum_names.h"
#include "engine/text/tokenizer.h"

namespace gpt2 {

// One way to go on: the text before, then the part whose loss counts.
struct Candidate {
  std::vector<int32_t> tokens;
  int counted = 0;   // tokens at their end
  int64_t bytes = 0; // of that part's text, without the space before it
};

struct Task {
  std::vector<Candidate> candidates; // of LAMBADA, one
  int right = 0;
};

enum class TaskKind { hellaswag, arc, piqa, winogrande, lambada };
constexpr auto names_of(TaskKind) {
  using enum TaskKind;
  return std::to_array<EnumName<TaskKind>>(
      {{hellaswag, "hellaswag"}, {arc, "arc"}, {piqa, "piqa"}, {winogrande, "winogrande"}, {lambada, "lambada"}});
}

// The first `limit` tasks of a file; 0: all. PIQA's labels may stand in a file beside it (valid.jsonl,
// valid-labels.lst). Throws Error(data) with file and line.
std::vector<Task> read_tasks(TaskKind kind, const std::string& path, const Tokenizer& tokenizer, int64_t limit = 0);

} // namespace gpt2
