#include "tools/report/run_metrics.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <utility>

#include "engine/base/json_reader.h"
#include "engine/base/nearest_name.h"
#include "engine/system/files.h"
#include "engine/system/folder_lock.h"

namespace gpt2 {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;

constexpr double kMostCount = 9e15;       // of steps or tokens: below it a double counts exactly
constexpr int64_t kReadAtOnce = 16 << 20; // bytes: bounds the memory for files of gigabytes
constexpr size_t kLongestLine = 16 << 20; // bytes: more than a sample of a million tokens

const std::vector<std::string> kStepColumns = {"loss",           "lr",       "grad_norm",   "tokens_per_sec",
                                               "speed_of_light", "adamw_lr", "update_norm", "adamw_update_norm"};
const std::vector<std::string> kValidationColumns = {"val_loss"};
const std::vector<std::string> kHellaswagColumns = {"accuracy", "per_token", "per_byte"};
const std::vector<std::string> kFp8Columns = {"fwd_scale", "bwd_scale", "worst_saturated", "worst_flushed",
                                              "blocks_in_bf16"};
const std::vector<std::string> kDeviceColumns = {"gpu_utilization",      "gpu_memory_gb",   "gpu_sm_clock_mhz",
                                                 "gpu_memory_clock_mhz", "gpu_power_watts", "gpu_temperature_c",
                                                 "gpu_throttled",        "gpu_power_capped"};

struct NotOurs { // a line; why is in `reason`
  std::string reason;
};

double number(const Json& line, const std::string& name) {
  const auto found = line.find(name);
  if (found == line.end() || found->is_null()) return kMissing;
  if (!found->is_number()) throw NotOurs{"'" + name + "' is not a number"};
  return found->get<double>();
}

std::string text(const Json& line, const std::string& name) {
  const auto found = line.find(name);
  if (found == line.end()) return "";
  if (!found->is_string()) throw NotOurs{"'" + name + "' is not a text"};
  return found->get<std::string>();
}

bool is_true(const Json& line, const std::string& name) { return line.value(name, Json()) == Json(true); }

void append(MetricTable& table, const std::vector<std::string>& columns, const Json& line, const Moment& at) {
  table.at.push_back(at);
  for (const std::string& name : columns) table.columns[name].push_back(number(line, name));
}

std::string event_text(const Json& line, const std::string& kind) {
  if (kind != "save") return text(line, "text");
  return text(line, "path") + (is_true(line, "best") ? ", the best so far" : "");
}

// The first line describes the run and is written with one write.
bool has_a_line(const File& file) {
  std::string bytes(static_cast<size_t>(std::min(kReadAtOnce, file.size())), ' ');
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes.find('\n') != std::string::npos;
}

} // namespace

RunReader::RunReader(std::string folder) : folder_(std::move(folder)), path_(folder_ + "/metrics.jsonl") {
  const bool is_there = fs::is_regular_file(path_);
  if (is_there) read();
  if (!metrics_.lives.empty()) return;
  if (has_writer(folder_))
    throw Error(ExitCode::data, "the run in " + folder_ + " is starting and has logged nothing yet",
                "try again after its first step");
  throw Error(ExitCode::data, is_there ? path_ + " holds no `run` line" : "there is no metrics.jsonl in " + folder_,
              "name the folder of a run that has begun, such as runs/NAME");
}

std::string RunReader::name() const { return fs::weakly_canonical(folder_).filename().string(); }

bool RunReader::read() {
  struct stat status {};
  if (inode_ != 0 && ::stat(path_.c_str(), &status) != 0) return false; // being replaced: retry at the next read()
  const File file = File::open(path_);
  if (::stat(path_.c_str(), &status) != 0) return false;
  const bool anew = inode_ != 0 && (status.st_ino != inode_ || file.size() < offset_);
  if (anew && !has_a_line(file)) return false; // keep the old data until the new file has a line
  if (anew) {
    metrics_ = {};
    offset_ = line_number_ = 0;
    seconds_before_ = tokens_per_step_ = 0;
    last_ = {};
    tensor_index_.clear();
  }
  inode_ = status.st_ino;

  const int64_t begin = offset_, size = file.size();
  std::string bytes, line;
  for (int64_t position = offset_; position < size;) {
    bytes.resize(static_cast<size_t>(std::min(kReadAtOnce, size - position)));
    file.read_at(position, std::as_writable_bytes(std::span(bytes)));
    position += static_cast<int64_t>(bytes.size());
    for (size_t start = 0; start < bytes.size();) {
      const size_t end = bytes.find('\n', start);
      line.append(bytes, start, end - start);
      if (line.size() > kLongestLine) throw_too_long();
      if (end == std::string::npos) break;
      ++line_number_;
      take(line);
      offset_ += static_cast<int64_t>(line.size()) + 1;
      line.clear();
      start = end + 1;
    }
  }
  return anew || offset_ != begin;
}

void RunReader::throw_too_long() const {
  throw Error(ExitCode::data,
              path_ + ":" + std::to_string(line_number_ + 1) + " is not a line of metrics: it has more than " +
                  std::to_string(kLongestLine) + " bytes",
              "remove that line, or read the file that the run wrote");
}

Moment RunReader::moment_of(const Json& line) const {
  const double step = number(line, "step"), seconds = number(line, "seconds");
  if (std::isnan(step) || std::isnan(seconds)) throw NotOurs{"it has no step or no seconds"};
  if (!(step >= 0 && step < kMostCount)) throw NotOurs{"its step is out of range"};
  Moment at{static_cast<int64_t>(step), number(line, "tokens"), seconds_before_ + seconds};
  if (std::isnan(at.tokens)) at.tokens = last_.tokens + tokens_per_step_ * static_cast<double>(at.step - last_.step);
  if (!(std::abs(at.tokens) < kMostCount)) throw NotOurs{"its number of tokens is out of range"};
  return at;
}

void RunReader::take(const std::string& bytes) {
  try {
    std::string why = "it is not a JSON object";
    const Json line = parse_json(bytes, {.bytes = kLongestLine}, &why);
    if (!line.is_object()) throw NotOurs{why};
    const std::string type = text(line, "type");
    if (type == "run") {
      seconds_before_ = last_.seconds;
      tokens_per_step_ = number(line, "tokens_per_step");
      const double max_steps = number(line, "max_steps");
      if (std::isnan(max_steps) || std::isnan(tokens_per_step_) || !line.value("options", Json()).is_object())
        throw NotOurs{"a `run` line has max_steps, tokens_per_step and options"};
      if (!(std::abs(max_steps) < kMostCount)) throw NotOurs{"max_steps is out of range"};
    }
    const Moment at = moment_of(line);
    if (type == "run") {
      metrics_.lives.push_back(line);
      metrics_.life_at.push_back(at);
      if (text(line, "event") == "resume")
        metrics_.events.push_back({at, at, "resume", "on " + text(line, "host") + ", " + text(line, "device")});
    } else if (type == "step") {
      append(metrics_.steps, kStepColumns, line, at);
      metrics_.skips_in_a_row = text(line, "verdict") == "applied" ? 0 : metrics_.skips_in_a_row + 1;
    } else if (type == "validation") {
      append(metrics_.validations, kValidationColumns, line, at);
    } else if (type == "hellaswag") {
      append(metrics_.hellaswags, kHellaswagColumns, line, at);
    } else if (type == "sample") {
      metrics_.samples.push_back({at, text(line, "text")});
    } else if (type == "fp8") {
      append(metrics_.fp8, kFp8Columns, line, at);
    } else if (type == "fp8_tensor") {
      take_tensor(line, at);
    } else if (type == "device") {
      append(metrics_.device, kDeviceColumns, line, at);
      take_throttling(at);
    } else if (type == "event") {
      const std::string kind = text(line, "event");
      metrics_.events.push_back({at, at, kind, event_text(line, kind)});
    } else if (type.empty()) {
      throw NotOurs{"it has no type"};
    }                                      // ignore types of later versions
    if (at.step >= last_.step) last_ = at; // a `save` line holds an earlier step
    metrics_.last_timestamp = text(line, "timestamp");
  } catch (const NotOurs& line) {
    throw Error(ExitCode::data,
                path_ + ":" + std::to_string(line_number_) + " is not a line of metrics: " + line.reason,
                "remove that line, or read the file that the run wrote");
  }
}

void RunReader::take_tensor(const Json& line, const Moment& at) {
  TensorRecords& records = metrics_.fp8_tensors;
  if (records.at.empty() || records.at.back().step != at.step) records.at.push_back(at);
  const auto [found, is_new] = tensor_index_.try_emplace(text(line, "tensor"), records.tensors.size());
  if (is_new) {
    records.tensors.push_back(found->first);
    records.values.emplace_back();
  }
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  std::vector<TensorRecords::Values>& values = records.values[found->second];
  values.resize(records.at.size(), {kNone, kNone, kNone, kNone});
  const auto flushed = static_cast<float>(number(line, "flushed"));
  values.back() = {static_cast<float>(number(line, "amax")), static_cast<float>(number(line, "saturated")), flushed,
                   is_true(line, "gelu_tail") ? kNone : flushed};
}

// Merges consecutive throttled lines into one event.
void RunReader::take_throttling(const Moment& at) {
  const std::vector<double>& throttled = metrics_.device.columns["gpu_throttled"];
  if (throttled.back() != 1) return;
  const bool continues = throttled.size() > 1 && throttled[throttled.size() - 2] == 1;
  auto open = std::find_if(metrics_.events.rbegin(), metrics_.events.rend(),
                           [](const RunEvent& event) { return event.kind == "throttle"; });
  if (continues && open != metrics_.events.rend())
    open->to = at;
  else
    metrics_.events.push_back({at, at, "throttle", "the GPU was slowed down by heat or hardware"});
}

namespace {

// The folders of the runs in `folder`. A run's name has at most three levels (--run_name sweep_a/lr_1). Not a recursive
// iterator: that follows no links and ends at the first folder that is removed meanwhile.
std::vector<fs::path> runs_in(const fs::path& folder, int levels = 3) {
  std::vector<fs::path> runs;
  std::error_code unreadable, absent;
  auto entry = fs::directory_iterator(folder, unreadable);
  for (; !unreadable && entry != fs::directory_iterator(); entry.increment(unreadable)) {
    if (!entry->is_directory(absent)) continue;
    if (fs::is_regular_file(entry->path() / "metrics.jsonl", absent)) runs.push_back(entry->path());
    if (levels > 1) std::ranges::move(runs_in(entry->path(), levels - 1), std::back_inserter(runs));
  }
  return runs;
}

// "": none.
std::string newest_run(const std::string& log_dir) {
  std::string newest;
  fs::file_time_type written{};
  std::error_code absent;
  for (const fs::path& run : runs_in(log_dir)) {
    const fs::file_time_type time = fs::last_write_time(run / "metrics.jsonl", absent);
    if (absent || (!newest.empty() && time <= written)) continue;
    newest = run.string();
    written = time;
  }
  return newest;
}

} // namespace

std::string find_run(const std::string& run, const std::string& log_dir) {
  if (fs::is_directory(run)) return run;
  if (fs::path(run).filename() == "metrics.jsonl" && fs::is_regular_file(run)) {
    const std::string folder = fs::path(run).parent_path().string();
    return folder.empty() ? "." : folder;
  }
  const std::string below = log_dir + "/" + run;
  if (fs::is_directory(below)) return below;
  if (run == kLatestRun) {
    const std::string newest = newest_run(log_dir);
    if (newest.empty()) throw Error(ExitCode::data, "no run in " + log_dir, "give a run, or its --log_dir");
    return newest;
  }
  std::vector<std::string> names;
  for (const fs::path& folder : runs_in(log_dir)) names.push_back(folder.lexically_relative(log_dir).string());
  throw Error(ExitCode::data, "there is no run '" + run + "', neither as a folder nor below " + log_dir,
              did_you_mean(run, names, "give the folder of a run, or its name and --log_dir"));
}

} // namespace gpt2
