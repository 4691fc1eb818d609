#include "tools/report/run_state.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/model/config.h"
#include "engine/options/batch_ramp.h"
#include "engine/system/folder_lock.h"

namespace gpt2 {

using Json = nlohmann::json;

std::string state_of(const RunReader& run) {
  const RunMetrics& m = run.metrics();
  if (has_writer(run.folder())) return "running";
  if (m.steps.at.empty()) return "failed";
  if (m.steps.at.back().step >= m.lives.back().value("max_steps", int64_t{0})) return "done";
  if (ended_on_skips(m) || !std::isfinite(m.steps.columns.at("loss").back())) return "diverged";
  return saved_step(m, m.steps.at.back().step) ? "stopped" : "failed";
}

bool ended_on_skips(const RunMetrics& metrics) {
  const Json most = metrics.lives.back()["options"].value("max_skipped", Json());
  return most.is_number() && metrics.skips_in_a_row >= most.get<double>();
}

double tokens_left(const Json& run_line, int64_t done) {
  const auto end = static_cast<int64_t>(run_line["max_steps"].get<double>());
  const Json text = run_line["options"].value("batch_ramp", Json());
  BatchRamp ramp;
  try {
    if (text.is_string() && !text.get<std::string>().empty()) ramp = BatchRamp(text.get<std::string>());
  } catch (const std::invalid_argument&) { // written by hand
  }
  const double left = ramp.sequences_before(end) - ramp.sequences_before(done);
  return std::max(left, 0.0) / ramp.last() * run_line["tokens_per_step"].get<double>();
}

bool saved_step(const RunMetrics& metrics, int64_t step) {
  return std::any_of(metrics.events.begin(), metrics.events.end(),
                     [&](const RunEvent& event) { return event.kind == "save" && event.from.step >= step; });
}

std::string model_text(const Json& run_line) {
  const auto number = [](const Json& from, const char* name) {
    const Json value = from.value(name, Json());
    return value.is_number_integer() ? value.get<int>() : 0;
  };
  const Json& options = run_line["options"];
  const Json name = options.value("model", Json());
  int layers = number(run_line, "layers"), channels = number(run_line, "channels");
  if (layers == 0 && name.is_string()) { // a log of version 0.2 or older
    try {
      GPT2Config config = with_shape(config_by_name(name.get<std::string>()), number(options, "layers"),
                                     number(options, "heads"), number(options, "channels"));
      if (const int seq_len = number(options, "seq_len"); seq_len > 0) config.seq_len = seq_len;
      if (Json(parameter_count(config)) == run_line.value("parameters", Json()))
        layers = config.layers, channels = config.channels;
    } catch (const Error&) { // unknown to this version
    }
  }
  std::string out = name.is_string() ? name.get<std::string>() + ", " : "";
  if (layers > 0) out += counted(layers, "layer") + ", " + std::to_string(channels) + " channels, ";
  const Json parameters = run_line.value("parameters", Json());
  return out + (parameters.is_number() ? format_count(parameters.get<double>()) + " parameters" : "");
}

} // namespace gpt2
