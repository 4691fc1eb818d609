// Multiple-choice tasks that a language model answers by likelihood: HellaSwag here, further kinds in tools/evaluate.
// Files are those that the authors and Hugging Face publish, one JSON object per line.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
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

// ---- for the readers of other kinds ----

struct BadTask { // the error in a line; read_task_lines() adds file and line
  std::string what;
};

constexpr size_t kLargestTaskFile = size_t{1} << 30; // bytes; HellaSwag has 12 MB

// One task per line that is not blank; `make_task` gets the JSON object and the number of tasks before it.
using MakeTask = std::function<Task(const nlohmann::json& line, size_t index)>;
std::vector<Task> read_task_lines(const std::string& kind, const std::string& path, int64_t limit,
                                  const MakeTask& make_task);

// Fields of a JSON object. All throw BadTask.
const nlohmann::json& field(const nlohmann::json& object, const char* name);
std::string text_of(const nlohmann::json& value, const char* name);
std::string text_field(const nlohmann::json& object, const char* name);
std::vector<std::string> texts_of(const nlohmann::json& array, const char* name);
int label_of(const nlohmann::json& value, const char* name); // 3, or "3" as in Hugging Face's copies

Candidate make_candidate(const Tokenizer& tokenizer, const std::string& context, const std::string& ending);
Task make_choice(const Tokenizer& tokenizer, const std::string& context, const std::vector<std::string>& endings,
                 int right);
Task with_label(Task task, int right);

} // namespace gpt2
