#include "engine/text/tasks.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/json_reader.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostBytes = size_t{1} << 30; // of a file: HellaSwag has 12 MB

// What is wrong with a line; the reader adds where it stands.
struct BadTask {
  std::string what;
};

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

// 3, and "3" as Hugging Face's copies have it.
int label_of(const Json& value, const char* name) {
  const std::string digits = value.is_string()           ? value.get<std::string>()
                             : value.is_number_integer() ? value.dump()
                                                         : "";
  if (digits.size() != 1 || digits[0] < '0' || digits[0] > '9')
    throw BadTask{std::string("\"") + name + "\" is not the number of an ending"};
  return digits[0] - '0';
}

class TaskMaker {
 public:
  explicit TaskMaker(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // GPT-2's tokens begin with the space before a word, so both parts can be encoded by themselves.
  Candidate candidate(const std::string& context, const std::string& ending) const {
    Candidate made;
    append(context, made.tokens);
    const size_t before = made.tokens.size();
    append(" " + ending, made.tokens);
    made.counted = static_cast<int>(made.tokens.size() - before);
    made.bytes = static_cast<int64_t>(ending.size());
    if (before == 0 || ending.empty()) throw BadTask{"its text or an ending is empty"};
    return made;
  }

  Task choice(const std::string& context, const std::vector<std::string>& endings, int right) const {
    Task task;
    for (const std::string& ending : endings) task.candidates.push_back(candidate(context, ending));
    return labelled(std::move(task), right);
  }

  static Task labelled(Task task, int right) {
    if (right < 0 || right >= static_cast<int>(task.candidates.size()))
      throw BadTask{"it says that ending " + std::to_string(right) + " of " + std::to_string(task.candidates.size()) +
                    " is right"};
    task.right = right;
    return task;
  }

 private:
  void append(const std::string& text, std::vector<int32_t>& tokens) const {
    const std::vector<uint16_t> encoded = tokenizer_.encode(text);
    tokens.insert(tokens.end(), encoded.begin(), encoded.end());
  }

  const Tokenizer& tokenizer_;
};

std::vector<std::string> texts_of(const Json& array, const char* name) {
  if (!array.is_array() || array.empty()) throw BadTask{std::string("\"") + name + "\" is not a list of texts"};
  std::vector<std::string> texts;
  for (const Json& text : array) texts.push_back(text_of(text, name));
  return texts;
}

Task hellaswag(const Json& line, const TaskMaker& maker) {
  return maker.choice(text_field(line, "ctx"), texts_of(field(line, "endings"), "endings"),
                      label_of(field(line, "label"), "label"));
}

// {"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}, or {"question", "choices": {"text": [], "label":
// []}, "answerKey"}; labels are A to E or 1 to 5.
Task arc(const Json& line, const TaskMaker& maker) {
  const Json& question = field(line, "question");
  const bool nested = question.is_object();
  const Json& choices = field(nested ? question : line, "choices");
  std::vector<std::string> texts, labels;
  if (choices.is_array()) {
    for (const Json& choice : choices) {
      texts.push_back(text_field(choice, "text"));
      labels.push_back(text_field(choice, "label"));
    }
  } else {
    texts = texts_of(field(choices, "text"), "text");
    labels = texts_of(field(choices, "label"), "label");
  }
  const std::string stem = nested ? text_field(question, "stem") : text_of(question, "question");
  const auto right = std::ranges::find(labels, text_field(line, "answerKey"));
  if (right == labels.end() || labels.size() != texts.size())
    throw BadTask{"its \"answerKey\" is not among its choices"};
  return maker.choice("Question: " + stem + "\nAnswer:", texts, static_cast<int>(right - labels.begin()));
}

Task piqa(const Json& line, const TaskMaker& maker, std::optional<int> label) {
  return maker.choice(
      "Question: " + text_field(line, "goal") + "\nAnswer:", {text_field(line, "sol1"), text_field(line, "sol2")},
      label ? *label : label_of(field(line, "label"), "label"));
}

// "The trophy doesn't fit into the suitcase because _ is too large.": each option in the gap, and the loss of what
// follows, which is the same text for both.
Task winogrande(const Json& line, const TaskMaker& maker) {
  const std::string sentence = text_field(line, "sentence");
  const size_t gap = sentence.find('_');
  if (gap == std::string::npos) throw BadTask{"its sentence has no _"};
  const std::string before = sentence.substr(0, gap);
  const size_t rest = sentence.find_first_not_of(' ', gap + 1);
  Task task;
  for (const char* option : {"option1", "option2"})
    task.candidates.push_back(
        maker.candidate(before + text_field(line, option), rest == std::string::npos ? "" : sentence.substr(rest)));
  return TaskMaker::labelled(std::move(task), label_of(field(line, "answer"), "answer") - 1);
}

Task lambada(const Json& line, const TaskMaker& maker) {
  std::string text = text_field(line, "text");
  text.erase(text.find_last_not_of(" \n") + 1);
  const size_t space = text.rfind(' ');
  if (space == std::string::npos || space == 0) throw BadTask{"its text is one word"};
  return maker.choice(text.substr(0, space), {text.substr(space + 1)}, 0);
}

Task make_task(TaskKind kind, const Json& line, const TaskMaker& maker, std::optional<int> label) {
  if (!line.is_object()) throw BadTask{"it is not a JSON object"};
  switch (kind) {
    case TaskKind::hellaswag:
      return hellaswag(line, maker);
    case TaskKind::arc:
      return arc(line, maker);
    case TaskKind::piqa:
      return piqa(line, maker, label);
    case TaskKind::winogrande:
      return winogrande(line, maker);
    case TaskKind::lambada:
      return lambada(line, maker);
  }
  return {};
}

// valid.jsonl -> valid-labels.lst, one 0 or 1 a line; empty: there is no such file.
std::vector<int> labels_beside(const std::string& path) {
  const std::string list = path.substr(0, path.rfind('.')) + "-labels.lst";
  std::error_code absent;
  if (!std::filesystem::is_regular_file(list, absent)) return {};
  std::istringstream words(read_text_file(list, ExitCode::data, kMostBytes));
  std::vector<int> labels;
  for (std::string word; words >> word;) {
    if (word != "0" && word != "1")
      throw Error(ExitCode::data, list + ": label " + std::to_string(labels.size() + 1) + " is neither 0 nor 1",
                  "give PIQA's own file, or labels in the tasks");
    labels.push_back(word == "1");
  }
  return labels;
}

} // namespace

std::vector<Task> read_tasks(TaskKind kind, const std::string& path, const Tokenizer& tokenizer, int64_t limit) {
  std::istringstream lines(read_text_file(path, ExitCode::data, kMostBytes));
  const std::vector<int> labels = kind == TaskKind::piqa ? labels_beside(path) : std::vector<int>{};
  const TaskMaker maker(tokenizer);
  std::vector<Task> tasks;
  int64_t number = 0;
  for (std::string line; (limit == 0 || number < limit) && std::getline(lines, line);) {
    number += 1;
    if (line.find_first_not_of(" \r") == std::string::npos) continue;
    std::optional<int> label;
    if (tasks.size() < labels.size()) label = labels[tasks.size()];
    try {
      tasks.push_back(make_task(kind, parse_json(line), maker, label));
    } catch (const BadTask& bad) {
      throw Error(ExitCode::data,
                  path + ", line " + std::to_string(number) + ", is no task of " + name_of(kind) + ": " + bad.what,
                  "docs/tools.md shows the form of each");
    }
  }
  if (tasks.empty()) throw Error(ExitCode::data, path + " holds no tasks");
  return tasks;
}

} // namespace gpt2
