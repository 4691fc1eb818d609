// Reads files of tasks: one JSON object per line, fields, and the tokens of each ending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/tasks.h"

namespace gpt2 {

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
