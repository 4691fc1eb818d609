// The kinds of tasks that bin/evaluate reads: HellaSwag, ARC, PIQA and WinoGrande (choose an ending), LAMBADA (predict
// the last word).
#pragma once

#include "engine/base/enum_names.h"
#include "engine/text/tasks.h"

namespace gpt2 {

enum class TaskKind { hellaswag, arc, piqa, winogrande, lambada };
constexpr auto names_of(TaskKind) {
  using enum TaskKind;
  return std::to_array<EnumName<TaskKind>>(
      {{hellaswag, "hellaswag"}, {arc, "arc"}, {piqa, "piqa"}, {winogrande, "winogrande"}, {lambada, "lambada"}});
}

// The first `limit` tasks of a file; 0: all. PIQA's labels may be in a file next to it: valid.jsonl, valid-labels.lst.
// Throws Error(data) with file and line.
std::vector<Task> read_tasks(TaskKind kind, const std::string& path, const Tokenizer& tokenizer, int64_t limit = 0);

} // namespace gpt2
