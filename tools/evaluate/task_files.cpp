#include "tools/evaluate/task_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "engine/base/error.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

using Json = nlohmann::json;

// {"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}, or
// {"question", "choices": {"text": [], "label": []}, "answerKey"}; labels are A to E or 1 to 5.
Task arc(const Json& line, const Tokenizer& tokenizer) {
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
  return make_choice(tokenizer, "Question: " + stem + "\nAnswer:", texts, static_cast<int>(right - labels.begin()));
}

Task piqa(const Json& line, const Tokenizer& tokenizer, std::optional<int> label) {
  return make_choice(tokenizer, "Question: " + text_field(line, "goal") + "\nAnswer:",
                     {text_field(line, "sol1"), text_field(line, "sol2")},
                     label ? *label : label_of(field(line, "label"), "label"));
}

// "The trophy doesn't fit into the suitcase because _ is too large.": each option fills the gap, and the loss of the
// text after the gap counts, which is the same for both.
Task winogrande(const Json& line, const Tokenizer& tokenizer) {
  const std::string sentence = text_field(line, "sentence");
  const size_t gap = sentence.find('_');
  if (gap == std::string::npos) throw BadTask{"its sentence has no _"};
  const std::string before = sentence.substr(0, gap);
  const size_t rest = sentence.find_first_not_of(' ', gap + 1);
  Task task;
  for (const char* option : {"option1", "option2"})
    task.candidates.push_back(make_candidate(tokenizer, before + text_field(line, option),
                                             rest == std::string::npos ? "" : sentence.substr(rest)));
  return with_label(std::move(task), label_of(field(line, "answer"), "answer") - 1);
}

Task lambada(const Json& line, const Tokenizer& tokenizer) {
  std::string text = text_field(line, "text");
  text.erase(text.find_last_not_of(" \n") + 1);
  const size_t space = text.rfind(' ');
  if (space == std::string::npos || space == 0) throw BadTask{"its text is one word"};
  return make_choice(tokenizer, text.substr(0, space), {text.substr(space + 1)}, 0);
}

// valid.jsonl -> valid-labels.lst, one 0 or 1 per line; empty: no such file.
std::vector<int> read_labels(const std::string& path) {
  const std::string list = path.substr(0, path.rfind('.')) + "-labels.lst";
  std::error_code absent;
  if (!std::filesystem::is_regular_file(list, absent)) return {};
  std::istringstream words(read_text_file(list, ExitCode::data, kLargestTaskFile));
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
  if (kind == TaskKind::hellaswag) return read_hellaswag(path, tokenizer, limit);
  const std::vector<int> labels = kind == TaskKind::piqa ? read_labels(path) : std::vector<int>{};
  return read_task_lines(name_of(kind), path, limit, [&](const Json& line, size_t index) {
    if (kind == TaskKind::arc) return arc(line, tokenizer);
    if (kind == TaskKind::winogrande) return winogrande(line, tokenizer);
    if (kind == TaskKind::lambada) return lambada(line, tokenizer);
    return piqa(line, tokenizer, index < labels.size() ? std::optional(labels[index]) : std::nullopt);
  });
}

} // namespace gpt2
