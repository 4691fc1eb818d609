// Files of tasks: which labels are taken, and what a wrong one is called.
#include "tools/evaluate/task_files.h"

#include <doctest/doctest.h>

#include "engine/system/files.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tests/tokenizer_tables.h"

using namespace gpt2;

namespace {

std::string hellaswag(const std::string& label) {
  return R"({"ctx": "A man", "endings": ["sits.", "runs.", "eats.", "sings."], "label": )" + label + "}\n";
}

} // namespace

TEST_CASE("a label is the number of an ending, and nothing is wrapped or rounded to one") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  const std::string path = folder / "tasks.jsonl";
  const auto right = [&](const std::string& label) {
    write_file_atomic(path, hellaswag(label));
    return read_tasks(TaskKind::hellaswag, path, *t).at(0).right;
  };
  CHECK(right("0") == 0);
  CHECK(right("3") == 3);
  CHECK(right("\"2\"") == 2);
  for (const char* label : {"4", "-1", "\"4\"", "\"-1\"", "4294967296", "4294967297", "-4294967295",
                            "18446744073709551616", "1.0", "1e0", "true", "null", "\"\"", "\"one\"", "[1]"}) {
    write_file_atomic(path, hellaswag("1") + hellaswag(label));
    const Error error = expect_error([&] { read_tasks(TaskKind::hellaswag, path, *t); });
    CAPTURE(label);
    CHECK(error.code() == ExitCode::data);
    CHECK(mentions(error, path + ", line 2"));
  }
}

TEST_CASE("PIQA's list of labels holds 0 and 1 alone") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  const std::string path = folder / "valid.jsonl", task = R"({"goal": "Boil", "sol1": "an egg", "sol2": "a stone"})";
  write_file_atomic(path, task + "\n" + task + "\n");
  write_file_atomic(folder / "valid-labels.lst", "1\n0\n");
  const std::vector<Task> tasks = read_tasks(TaskKind::piqa, path, *t);
  CHECK(tasks.at(0).right == 1);
  CHECK(tasks.at(1).right == 0);
  for (const char* list : {"1\n2\n", "1\n-1\n", "1\n99999999999\n", "1\nx\n", "1\n4294967296\n"}) {
    write_file_atomic(folder / "valid-labels.lst", list);
    CHECK(mentions(expect_error([&] { read_tasks(TaskKind::piqa, path, *t); }), "valid-labels.lst: label 2"));
  }
}
