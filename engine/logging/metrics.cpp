#include "engine/logging/metrics.h"

#include <chrono>
#include <cmath>
#include <concepts>
#include <filesystem>
#include <fstream>
#include <optional>

#include "engine/base/formatted.h"
#include "engine/base/json_reader.h"
#include "engine/base/parse_number.h"
#include "engine/base/utf8.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

std::string json_text(std::string_view text) { return nlohmann::json(to_valid_utf8(text)).dump(); }
std::string json_text(const JsonText& json) { return json.text; }
std::string json_text(bool value) { return value ? "true" : "false"; }
std::string json_text(int64_t value) { return std::to_string(value); }

template <std::floating_point Number>
std::string json_text(Number value) {
  return std::isfinite(value) ? shortest_text(value) : "null";
}

// "2026-11-15T11:42:18.125Z": UTC, in ISO 8601.
std::string utc_now() {
  using namespace std::chrono;
  const auto since_epoch = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
  return date_text("%Y-%m-%dT%H:%M:%S", gmtime_r, since_epoch / 1000) +
         formatted(".%03dZ", static_cast<int>(since_epoch % 1000));
}

std::optional<int64_t> step_in(const std::string& line) { // nullopt: not a line of this log
  const auto object = parse_json(line);
  if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) return std::nullopt;
  return object["step"].get<int64_t>();
}

std::string unused_backup_name(const std::string& path) { // PATH.1, PATH.2, ...
  int number = 1;
  while (std::filesystem::exists(path + "." + std::to_string(number))) ++number;
  return path + "." + std::to_string(number);
}

void keep_lines_before(const std::string& path, int64_t first_step, const Warn& warn) {
  std::ifstream file(path, std::ios::binary);
  std::string kept;
  bool changed = false;
  int64_t unknown = 0;
  for (std::string line; std::getline(file, line);) {
    const std::optional<int64_t> step = step_in(line);
    const bool is_kept = step && *step < first_step;
    if (!step) ++unknown;
    if (is_kept) kept += line + "\n";
    changed = changed || !is_kept || file.eof(); // eof: the line has no newline
  }
  if (file.bad()) throw Error(ExitCode::disk, "cannot read " + path, "check the disk, or use another --log_dir");
  if (unknown > 0) {
    const std::string original = unused_backup_name(path);
    write_file_atomic(original, read_text_file(path, ExitCode::disk));
    warn(path + ": " + counted(unknown, "line") + (unknown == 1 ? " is" : " are") +
         " not a JSON object with a step, and left out; the original file is kept as " + original);
  }
  if (changed) write_file_atomic(path, kept);
}

void set_aside(const std::string& path) {
  std::error_code error;
  std::filesystem::rename(path, unused_backup_name(path), error);
  if (error) throw_system_error(ExitCode::disk, "rename", path, error.value());
}

// Handles the file of an earlier run, then returns `path`.
std::string prepare(const std::string& path, int64_t first_step, const Warn& warn) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) make_folders(folder);
  std::error_code absent;
  if (!std::filesystem::is_regular_file(path, absent)) return path;
  if (first_step > 0)
    keep_lines_before(path, first_step, warn);
  else if (std::filesystem::file_size(path, absent) > 0)
    set_aside(path);
  return path;
}

} // namespace

MetricsLog::MetricsLog(const std::string& path, int64_t first_step, const Warn& warn)
    : file_(prepare(path, first_step, warn), AppendFile::Mode::append, warn) {}

void MetricsLog::write(std::string_view type, int64_t step, const std::vector<Metric>& metrics) {
  const double seconds = std::floor(1e3 * opened_.seconds()) / 1e3; // whole milliseconds
  std::string line = concat("{\"type\":", json_text(type), ",\"step\":", step, ",\"timestamp\":\"", utc_now(),
                            "\",\"seconds\":", json_text(seconds));
  for (const auto& [name, value] : metrics)
    line += concat(",", json_text(name), ":", std::visit([](const auto& v) { return json_text(v); }, value));
  file_.append(line + "}\n");
}

} // namespace gpt2
