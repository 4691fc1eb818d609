#include "engine/checkpoint/names.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/formatted.h"
#include "engine/base/parse_number.h"
#include "engine/checkpoint/format.h"
#include "engine/hdf5/manifest.h"
#include "engine/system/files.h"

namespace gpt2 {

namespace fs = std::filesystem;

std::string default_checkpoint_dir(Precision precision) { return "checkpoints_" + to_string(precision); }

const std::vector<std::string>& default_checkpoint_dirs() {
  static const std::vector<std::string> dirs{"checkpoints_fp8", "checkpoints_bf16", "checkpoints_fp32"};
  return dirs;
}

bool is_complete(const std::string& checkpoint) {
  std::error_code absent;
  return fs::is_regular_file(rank_file(checkpoint, 0), absent) ||
         fs::is_regular_file(manifest_path(checkpoint), absent);
}

int64_t step_of(const std::string& checkpoint) {
  const std::string name = fs::path(checkpoint).filename().string(), prefix = "step_";
  return name.starts_with(prefix) ? parse_number<int64_t>(name.substr(prefix.size())).value_or(-1) : -1;
}

std::string step_folder_name(int64_t step) { return formatted("step_%08lld", static_cast<long long>(step)); }

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

bool is_reserved_name(std::string_view folder_name) {
  return folder_name == "." || folder_name == kLatest || folder_name == kBest || step_of(std::string(folder_name)) >= 0;
}

std::string follow_marker(const std::string& folder, const std::string& marker) {
  std::error_code absent;
  if (!fs::is_regular_file(folder + "/" + marker, absent)) return "";
  std::string name = read_text_file(folder + "/" + marker, ExitCode::checkpoint);
  name.erase(name.find_last_not_of(" \r\n\t") + 1);
  const fs::path path(name);
  if (path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end()) return "";
  const std::string checkpoint = folder + "/" + name;
  return step_of(name) >= 0 && is_complete(checkpoint) ? checkpoint : "";
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

} // namespace gpt2
