#include "engine/system/tuning_store.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/split.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

TuningTable read_table(const std::string& path) {
  std::error_code unreadable; // then read_text_file() would fail as well
  if (path.empty() || !std::filesystem::exists(path, unreadable)) return {};
  return parse_tuning_table(read_text_file(path, ExitCode::disk));
}

} // namespace

TuningTable parse_tuning_table(const std::string& text) {
  TuningTable table;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const std::vector<std::string> columns = split(line, '\t');
    if (columns.size() != 5) continue;
    table[{columns[0], columns[1], columns[2]}] = {columns[3], std::strtof(columns[4].c_str(), nullptr)};
  }
  return table;
}

std::string to_text(const TuningTable& table) {
  std::string text;
  for (const auto& [key, entry] : table) {
    const std::string time = formatted("%.2f", entry.microseconds);
    text += key.device + '\t' + key.subject + '\t' + key.text + '\t' + entry.choice + '\t' + time + '\n';
  }
  return text;
}

TuningStore::TuningStore(std::string path) : path_(std::move(path)) {
  try {
    table_ = read_table(path_);
  } catch (const Error& error) {
    log_warn(std::string("the tuning cache is not read: ") + error.what());
  }
}

std::optional<TuningEntry> TuningStore::recall(const TuningKey& key) const {
  const auto found = table_.find(key);
  if (found == table_.end()) return std::nullopt;
  return found->second;
}

void TuningStore::remember(const TuningKey& key, const TuningEntry& entry) {
  table_[key] = entry;
  if (path_.empty() || unwritable_) return;
  try {
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    if (!folder.empty()) make_folders(folder);
    TuningTable together = read_table(path_);
    together[key] = entry;
    write_file_atomic(path_, to_text(together));
  } catch (const Error& error) {
    unwritable_ = true;
    log_warn(std::string("the tuning cache is not written: ") + error.what());
  }
}

} // namespace gpt2
