// Field numbers are those of TensorFlow's event.proto, summary.proto and tensor.proto, and of the hparams plugin's
// plugin_data.proto and api.proto.
#include "engine/logging/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/formatted.h"
#include "engine/base/utf8.h"
#include "engine/logging/crc32c.h"
#include "engine/logging/histogram.h"
#include "engine/logging/protobuf_writer.h"
#include "engine/system/files.h"
#include "engine/system/process.h"

namespace gpt2 {
namespace {

constexpr std::string_view kFilePrefix = "events.out.tfevents.";

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard reads the files of a folder in the order of their names, which begin with a time in seconds. A restart
// within the second, or after the clock was set back, must still sort after existing files.
int64_t next_file_time(const std::string& folder) {
  auto seconds = static_cast<int64_t>(wall_seconds());
  std::error_code unreadable; // ignored: creating the file reports the error
  for (const auto& entry : std::filesystem::directory_iterator(folder, unreadable)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFilePrefix)) continue;
    int64_t existing = 0;
    std::from_chars(name.data() + kFilePrefix.size(), name.data() + name.size(), existing);
    seconds = std::max(seconds, existing + 1);
  }
  return seconds;
}

std::string new_file_path(const std::string& folder) {
  make_folders(folder);
  const std::string time = formatted("%010lld", static_cast<long long>(next_file_time(folder)));
  return folder + "/" + std::string(kFilePrefix) + time + "." + host_name() + "." + std::to_string(::getpid());
}

// u64 length, u32 masked CRC of the length, the data, u32 masked CRC of the data; little-endian.
std::string frame_record(std::string_view data) {
  const auto as_bytes = [](const auto& value) {
    return std::string_view(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const uint64_t length = data.size();
  const uint32_t length_crc = masked_crc32c(as_bytes(length)), data_crc = masked_crc32c(data);
  return concat(as_bytes(length), as_bytes(length_crc), data, as_bytes(data_crc));
}

ProtobufWriter encode_histogram(const Histogram& histogram) {
  // Runs of empty buckets are written as one, as TensorFlow does: a weight tensor fills some 200 of 1,551.
  const std::span<const double> limits = histogram_limits();
  std::vector<double> kept_limits, kept_counts;
  for (size_t i = 0; i < limits.size(); ++i) {
    const bool in_empty_run = histogram.buckets[i] == 0 && i + 1 < limits.size() && histogram.buckets[i + 1] == 0;
    if (in_empty_run) continue;
    kept_limits.push_back(limits[i]);
    kept_counts.push_back(static_cast<double>(histogram.buckets[i]));
  }
  ProtobufWriter proto;
  proto.real(1, histogram.min).real(2, histogram.max).real(3, static_cast<double>(histogram.count));
  proto.real(4, histogram.sum).real(5, histogram.sum_squares);
  proto.packed(6, kept_limits).packed(7, kept_counts);
  return proto;
}

// SummaryMetadata that assigns the value to a TensorBoard plugin.
ProtobufWriter encode_metadata(std::string_view plugin, std::string_view content, int data_class) {
  constexpr int kUnknownClass = 0;
  ProtobufWriter metadata;
  metadata.message(1, ProtobufWriter().text(1, plugin).text(2, content));
  if (data_class != kUnknownClass) metadata.integer(4, data_class);
  return metadata;
}

// TensorProto of one string, shape ().
ProtobufWriter encode_string_tensor(std::string_view text) {
  constexpr int kString = 7;
  return ProtobufWriter().integer(1, kString).message(2, ProtobufWriter()).text(8, text);
}

// TensorProto of no floats, shape (0), for values that are only metadata.
ProtobufWriter encode_empty_tensor() {
  constexpr int kFloat = 1;
  const ProtobufWriter dimension = ProtobufWriter().integer(1, 0);
  return ProtobufWriter().integer(1, kFloat).message(2, ProtobufWriter().message(2, dimension));
}

struct EncodedHParam {
  int type;             // DataType of the hparams plugin
  ProtobufWriter value; // google.protobuf.Value
};

// The HPARAMS page uses JSON, which has no NaN or infinity: such numbers become text.
EncodedHParam encode_hparam(const HParam& value) {
  constexpr int kText = 1, kBoolean = 2, kNumber = 3;
  const double* const number = std::get_if<double>(&value);
  if (number && std::isfinite(*number)) return {kNumber, ProtobufWriter().real(2, *number)};
  if (const bool* const flag = std::get_if<bool>(&value)) return {kBoolean, ProtobufWriter().integer(4, *flag)};
  const std::string text = number ? std::to_string(*number) : to_valid_utf8(std::get<std::string>(value));
  return {kText, ProtobufWriter().text(3, text)};
}

// `field` of Event: 3 file_version, 5 summary, 7 session_log.
std::string event_record(int64_t step, int field, std::string_view payload) {
  ProtobufWriter event;
  event.real(1, wall_seconds()).integer(2, step).text(field, payload);
  return frame_record(event.bytes());
}

std::string summary_record(int64_t step, const ProtobufWriter& value) {
  return event_record(step, 5, ProtobufWriter().message(1, value).bytes());
}

// TensorBoard reads these from the metadata and ignores the step.
std::string hparams_record(const std::string& tag, int field, const ProtobufWriter& payload) {
  const ProtobufWriter plugin_data = ProtobufWriter().message(field, payload);
  ProtobufWriter value;
  value.text(1, "_hparams_/" + tag).message(8, encode_empty_tensor());
  value.message(9, encode_metadata("hparams", plugin_data.bytes(), 0));
  return summary_record(0, value);
}

} // namespace

TensorBoardLogger::TensorBoardLogger(const std::string& folder, int64_t resume_step, Warn warn)
    : path_(new_file_path(folder)), file_(path_, AppendFile::Mode::create, std::move(warn)) {
  constexpr int kSessionStart = 1;
  file_.append_to_head(event_record(0, 3, "brain.Event:2"));
  file_.append_to_head(event_record(resume_step, 7, ProtobufWriter().integer(1, kSessionStart).bytes()));
}

TensorBoardLogger::~TensorBoardLogger() {
  if (!session_open_) return;
  constexpr int kSuccess = 1, kFailure = 2;
  const int status = std::uncaught_exceptions() > 0 ? kFailure : kSuccess;
  const ProtobufWriter end_info = ProtobufWriter().integer(1, status).real(2, wall_seconds());
  file_.append(hparams_record("session_end_info", 4, end_info));
}

void TensorBoardLogger::add_scalar(const std::string& tag, double value, int64_t step) {
  file_.append(summary_record(step, ProtobufWriter().text(1, tag).real(2, static_cast<float>(value))));
}

void TensorBoardLogger::add_histogram(const std::string& tag, std::span<const float> values, int64_t step) {
  file_.append(
      summary_record(step, ProtobufWriter().text(1, tag).message(5, encode_histogram(make_histogram(values)))));
}

void TensorBoardLogger::add_text(const std::string& tag, const std::string& text, int64_t step) {
  constexpr int kTensorClass = 2;
  ProtobufWriter value;
  value.text(1, tag).message(8, encode_string_tensor(to_valid_utf8(text)));
  value.message(9, encode_metadata("text", "", kTensorClass));
  file_.append(summary_record(step, value));
}

void TensorBoardLogger::add_hparams(const std::map<std::string, HParam>& hparams, const std::string& metric_tag) {
  ProtobufWriter experiment, session_start;
  experiment.real(3, wall_seconds());
  for (const auto& [name, given] : hparams) {
    const auto [type, value] = encode_hparam(given);
    experiment.message(4, ProtobufWriter().text(1, name).integer(4, type));
    session_start.message(1, ProtobufWriter().text(1, name).message(2, value));
  }
  experiment.message(5, ProtobufWriter().message(1, ProtobufWriter().text(2, metric_tag)));
  session_start.real(5, wall_seconds());

  file_.append_to_head(hparams_record("experiment", 2, experiment));
  file_.append_to_head(hparams_record("session_start_info", 3, session_start));
  session_open_ = true;
}

} // namespace gpt2
