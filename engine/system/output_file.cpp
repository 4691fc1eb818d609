#include "engine/system/output_file.h"

#include <algorithm>
#include <filesystem>

#include "engine/system/files.h"

namespace gpt2 {
namespace {

constexpr int64_t kHeadBytes = 2048;

bool is_of_kind(const std::string& path, const OutputKind& kind) {
  const File file = File::open(path, ExitCode::usage);
  std::string head(static_cast<size_t>(std::min(kHeadBytes, file.size())), ' ');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  const auto has = [&](std::string_view text) { return !text.empty() && head.find(text) != std::string::npos; };
  return head.empty() || (head.starts_with(kind.start) && (has(kind.marker) || has(kind.older)));
}

} // namespace

void refuse_foreign_file(const std::string& path, const OutputKind& kind, bool overwrite) {
  std::error_code absent; // PendingFile refuses devices and pipes
  if (std::filesystem::is_directory(path, absent))
    throw Error(ExitCode::usage, path + " is a folder, not a file for " + std::string(kind.name),
                "give the name of a file");
  if (path.empty() || overwrite || !std::filesystem::is_regular_file(path, absent) || is_of_kind(path, kind)) return;
  const std::string flag(kind.flag);
  throw Error(
      ExitCode::usage, path + " exists, and it is not " + std::string(kind.name),
      flag.empty() ? "name another file, or remove this one" : "name another file, or replace this one with " + flag);
}

} // namespace gpt2
