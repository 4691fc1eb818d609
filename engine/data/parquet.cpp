#include "engine/data/parquet.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace gpt2 {
namespace fs = std::filesystem;
namespace {

const std::string kConverter = "tools/parquet_to_jsonl.py";
const std::string kFailureKey = "parquet_to_jsonl_failed"; // as in the converter

std::string find_converter() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& root : {program.parent_path(), fs::path(".")}) { // tools stand one folder below the tree's root
    if (fs::exists(root / kConverter, ignored)) return (root / kConverter).string();
  }
  throw Error(ExitCode::data, kConverter + ", which reads Parquet files, is not here",
              "run bin/tokenize in the tree it was built in");
}

} // namespace

std::vector<std::string> parquet_command(const std::string& path, const std::string& column) {
  return {"python3", find_converter(), "--column", column, "--", path};
}

void check_parquet_ending(const std::string& path, const ChildProcess::Ending& ending) {
  if (ending.status == 0) return;
  throw Error(ExitCode::data, path + ": its converter ended with " + std::to_string(ending.status) +
                                  (ending.last_words.empty() ? "" : ": " + ending.last_words));
}

void check_producer_is_well(std::string_view line) {
  if (!line.starts_with("{\"" + kFailureKey + "\"")) return;
  const auto object = nlohmann::json::parse(line, nullptr, false);
  throw Error(ExitCode::data, object.is_object() ? object.value(kFailureKey, "") : std::string(line));
}

} // namespace gpt2
