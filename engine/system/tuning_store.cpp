#include "engine/system/tuning_store.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

std::vector<std::string> columns_of(const std::string& line) {
  std::vector<std::string> columns;
  size_t begin = 0;
  for (size_t tab; (tab = line.find('\t', begin)) != std::string::npos; begin = tab + 1)
    columns.push_back(line.substr(begin, tab - begin));
  columns.push_back(line.substr(begin));
  return columns;
}

TuningNotes read_notes(const std::string& path) {
  std::error_code unreadable; // a path that cannot be looked at is one that cannot be read
  if (path.empty() || !std::filesystem::exists(path, unreadable)) return {};
  return parse_tuning_notes(read_text_file(path, ExitCode::disk));
}

} // namespace

TuningNotes parse_tuning_notes(const std::string& text) {
  TuningNotes notes;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const std::vector<std::string> columns = columns_of(line);
    if (columns.size() != 5) continue;
    notes[{columns[0], columns[1], columns[2]}] = {columns[3], std::strtof(columns[4].c_str(), nullptr)};
  }
  return notes;
}

std::string to_text(const TuningNotes& notes) {
  std::string text;
  for (const auto& [question, answer] : notes) {
    char time[32];
    std::snprintf(time, sizeof(time), "%.2f", answer.microseconds);
    text +=
        question.device + '\t' + question.subject + '\t' + question.text + '\t' + answer.choice + '\t' + time + '\n';
  }
  return text;
}

TuningStore::TuningStore(std::string path) : path_(std::move(path)) {
  try {
    notes_ = read_notes(path_);
  } catch (const Error& error) {
    log_warn(std::string("remembered tuning is not read: ") + error.what());
  }
}

std::optional<TuningAnswer> TuningStore::recall(const TuningQuestion& question) const {
  const auto found = notes_.find(question);
  if (found == notes_.end()) return std::nullopt;
  return found->second;
}

void TuningStore::remember(const TuningQuestion& question, const TuningAnswer& answer) {
  notes_[question] = answer;
  if (path_.empty() || unwritable_) return;
  try {
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    if (!folder.empty()) make_folders(folder);
    TuningNotes together = read_notes(path_);
    together[question] = answer;
    write_file_atomic(path_, to_text(together));
  } catch (const Error& error) {
    unwritable_ = true;
    log_warn(std::string("tuning is not remembered: ") + error.what());
  }
}

} // namespace gpt2
