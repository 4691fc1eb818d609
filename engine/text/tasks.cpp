#include "engine/text/tasks.h"

#include "engine/text/task_lines.h"

namespace gpt2 {

std::vector<Task> read_hellaswag(const std::string& path, const Tokenizer& tokenizer, int64_t limit) {
  return read_task_lines("hellaswag", path, limit, [&](const nlohmann::json& line, size_t) {
    return make_choice(tokenizer, text_field(line, "ctx"), texts_of(field(line, "endings"), "endings"),
                       label_of(field(line, "label"), "label"));
  });
}

} // namespace gpt2
