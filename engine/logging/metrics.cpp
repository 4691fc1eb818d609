#include "engine/logging/metrics.h"

#include <charconv>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <type_traits>

#include "engine/base/formatted.h"
#include "engine/base/json_reader.h"
#include "engine/base/utf8.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

// The shortest digits that parse to the same number; std::to_chars gives valid JSON for finite ones.
template <typename Number>
void append_number(std::string& line, Number value) {
  char digits[32];
  line.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void append_string(std::string& line, std::string_view text) { line += nlohmann::json(to_valid_utf8(text)).dump(); }

void append_value(std::string& line, const MetricValue& metric) {
  std::visit(
      [&line](const auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          line += value ? "true" : "false";
        } else if constexpr (std::is_same_v<Value, std::string>) {
          append_string(line, value);
        } else if constexpr (std::is_same_v<Value, JsonText>) {
          line += value.text;
        } else if (std::isfinite(static_cast<double>(value))) {
          append_number(line, value);
        } else {
          line += "null";
        }
      },
      metric);
}

// "2026-11-15T11:42:18.125Z": UTC, in ISO 8601.
std::string utc_now() {
  using namespace std::chrono;
  const auto since_epoch = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
  const std::time_t whole_seconds = static_cast<std::time_t>(since_epoch / 1000);
  std::tm utc{};
  gmtime_r(&whole_seconds, &utc);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  return formatted("%s.%03dZ", date, static_cast<int>(since_epoch % 1000));
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
  using namespace std::chrono;
  const auto milliseconds_open = duration_cast<milliseconds>(steady_clock::now() - opened_).count();
  std::string line = "{\"type\":";
  append_string(line, type);
  line += ",\"step\":";
  append_number(line, step);
  line += ",\"timestamp\":\"" + utc_now() + "\",\"seconds\":";
  append_number(line, static_cast<double>(milliseconds_open) / 1000);
  for (const Metric& metric : metrics) {
    line += ',';
    append_string(line, metric.name);
    line += ':';
    append_value(line, metric.value);
  }
  line += "}\n";
  file_.append(line);
}

} // namespace gpt2
