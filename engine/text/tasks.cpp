#include "engine/text/tasks.h"

#include <sstream>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/json_reader.h"
#include "engine/system/files.h"

namespace gpt2 {

using Json = nlohmann::json;

const Json& field(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw BadTask{std::string("it has no \"") + name + "\""};
  return *found;
}

std::string text_of(const Json& value, const char* name) {
  if (!value.is_string()) throw BadTask{std::string("\"") + name + "\" is not a text"};
  return value.get<std::string>();
}

std::string text_field(const Json& object, const char* name) { return text_of(field(object, name), name); }

std::vector<std::string> texts_of(const Json& array, const char* name) {
  if (!array.is_array() || array.empty()) throw BadTask{std::string("\"") + name + "\" is not a list of texts"};
  std::vector<std::string> texts;
  for (const Json& text : array) texts.push_back(text_of(text, name));
  return texts;
}

int label_of(const Json& value, const char* name) {
  const std::string digits = value.is_string()           ? value.get<std::string>()
                             : value.is_number_integer() ? value.dump()
                                                         : "";
  if (digits.size() != 1 || digits[0] < '0' || digits[0] > '9')
    throw BadTask{std::string("\"") + name + "\" is not the number of an ending"};
  return digits[0] - '0';
}

// GPT-2's tokens include the space before a word, so context and ending can be encoded separately.
Candidate make_candidate(const Tokenizer& tokenizer, const std::string& context, const std::string& ending) {
  Candidate made;
  const auto append = [&](const std::string& text) {
    const std::vector<uint16_t> encoded = tokenizer.encode(text);
    made.tokens.insert(made.tokens.end(), encoded.begin(), encoded.end());
    return static_cast<int>(encoded.size());
  };
  if (append(context) == 0 || ending.empty()) throw BadTask{"its text or an ending is empty"};
  made.counted = append(" " + ending);
  made.bytes = static_cast<int64_t>(ending.size());
  return made;
}

Task make_choice(const Tokenizer& tokenizer, const std::string& context, const std::vector<std::string>& endings,
                 int right) {
  Task task;
  for (const std::string& ending : endings) task.candidates.push_back(make_candidate(tokenizer, context, ending));
  return with_label(std::move(task), right);
}

Task with_label(Task task, int right) {
  if (right < 0 || right >= static_cast<int>(task.candidates.size()))
    throw BadTask{"its label is " + std::to_string(right) + ", and it has " +
                  counted(static_cast<int64_t>(task.candidates.size()), "ending")};
  task.right = right;
  return task;
}

std::vector<Task> read_task_lines(const std::string& kind, const std::string& path, int64_t limit,
                                  const MakeTask& make_task) {
  std::istringstream lines(read_text_file(path, ExitCode::data, kLargestTaskFile));
  std::vector<Task> tasks;
  int64_t number = 0;
  for (std::string line; (limit == 0 || number < limit) && std::getline(lines, line);) {
    number += 1;
    if (line.find_first_not_of(" \r") == std::string::npos) continue;
    try {
      const Json json = parse_json(line);
      if (!json.is_object()) throw BadTask{"it is not a JSON object"};
      tasks.push_back(make_task(json, tasks.size()));
    } catch (const BadTask& bad) {
      throw Error(ExitCode::data,
                  path + ", line " + std::to_string(number) + ", is not a task of " + kind + ": " + bad.what,
                  "docs/tools.md shows the format of each kind");
    }
  }
  if (tasks.empty()) throw Error(ExitCode::data, path + " holds no tasks");
  return tasks;
}

std::vector<Task> read_hellaswag(const std::string& path, const Tokenizer& tokenizer, int64_t limit) {
  return read_task_lines("hellaswag", path, limit, [&](const Json& line, size_t) {
    return make_choice(tokenizer, text_field(line, "ctx"), texts_of(field(line, "endings"), "endings"),
                       label_of(field(line, "label"), "label"));
  });
}

} // namespace gpt2
