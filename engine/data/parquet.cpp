#include "engine/data/parquet.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/data/our_script.h"

namespace gpt2 {
namespace {

const std::string kFailureKey = "parquet_to_jsonl_failed"; // as in the converter

} // namespace

std::vector<std::string> parquet_command(const std::string& path, const std::string& column) {
  return {"python3", find_script("tools/parquet_to_jsonl.py", "reads Parquet files"), "--column", column, "--", path};
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
