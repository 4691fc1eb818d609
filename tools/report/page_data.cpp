#include "tools/report/page_data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "engine/base/formatted.h"
#include "engine/base/json_reader.h"
#include "engine/options/option_fields.h"
#include "tools/report/downsampling.h"
#include "tools/report/heat_map.h"
#include "tools/report/run_state.h"

namespace gpt2 {
namespace {

using Json = nlohmann::json;

// Limits for all runs of a page together: 30,000 steps with 48 layers take about 1.2 MB.
constexpr size_t kPoints = 6000, kPointsOfOne = 3000, kOtherPoints = 1200; // of curves
constexpr size_t kCells = 360'000;                                         // of heat maps, 2 bytes each
constexpr size_t kEvents = 1500;
constexpr size_t kSampleBytes = 200'000;

void put_moment(Json& out, const Moment& at) {
  out["step"] = at.step;
  out["tokens"] = number_json(at.tokens);
  out["seconds"] = std::round(at.seconds * 1000) / 1000;
}

// {"bucket": 10, "step": [..], "tokens": [..], "seconds": [..], "loss": {"mean": [..], "min": [..], "max": [..]}}. A
// table that is not downsampled has no min and max; a column without numbers is omitted.
Json table_json(const DownsampledTable& downsampled, size_t rows, bool band) {
  Json out = {{"bucket", downsampled.bucket}, {"rows", rows}};
  Json steps = Json::array(), tokens = Json::array(), seconds = Json::array();
  for (const Moment& at : downsampled.at) {
    steps.push_back(at.step);
    tokens.push_back(static_cast<int64_t>(at.tokens));
    seconds.push_back(std::round(at.seconds * 100) / 100);
  }
  out["step"] = std::move(steps);
  out["tokens"] = std::move(tokens);
  out["seconds"] = std::move(seconds);
  for (const auto& [name, column] : downsampled.columns) {
    if (std::none_of(column.mean.begin(), column.mean.end(), [](double value) { return std::isfinite(value); }))
      continue;
    Json& of = out[name];
    of["mean"] = numbers_json(column.mean);
    if (!band) continue;
    of["min"] = numbers_json(column.min);
    of["max"] = numbers_json(column.max);
  }
  return out;
}

// The table of one run, or over the seeds of a group.
Json table_json(const PageGroup& group, const MetricTable RunMetrics::*member, size_t most) {
  if (group.runs.size() == 1) {
    const MetricTable& table = group.runs.front()->metrics().*member;
    const DownsampledTable downsampled = downsample(table, most);
    return table_json(downsampled, table.at.size(), downsampled.at.size() < table.at.size());
  }
  std::vector<const MetricTable*> tables;
  size_t rows = 0;
  for (const RunReader* run : group.runs) {
    tables.push_back(&(run->metrics().*member));
    rows = std::max(rows, tables.back()->at.size());
  }
  return table_json(downsample_over_seeds(tables, most), rows, /*band=*/true);
}

Json events_json(const std::vector<RunEvent>& events, size_t most) {
  Json out = Json::array();
  for (const RunEvent& event : downsample(events, most)) {
    Json one = {{"kind", event.kind}, {"text", event.text}, {"count", event.count}};
    put_moment(one, event.from);
    put_moment(one["to"], event.to);
    out.push_back(std::move(one));
  }
  return out;
}

Json samples_json(const std::vector<SampleText>& samples, size_t bytes) {
  Json out = Json::array();
  for (const SampleText& sample : downsample(samples, bytes)) {
    Json one = {{"text", sample.text.substr(0, bytes)}};
    put_moment(one, sample.at);
    out.push_back(std::move(one));
  }
  return out;
}

// [{"name", "group", "value", "default", "differs"}]: "differs" is "yes", "auto" (the default is auto: the user or the
// program chose the value) or "".
Json settings_json(const Json& options) {
  Json out = Json::array();
  for (const OptionField& field : option_fields()) {
    if (field.not_stored || !options.contains(field.name)) continue;
    const Json& value = options[field.name];
    const Json usual = parse_json(field.toml({}));
    const char* differs = value == usual ? "" : usual == "auto" ? "auto" : "yes";
    out.push_back(
        {{"name", field.name}, {"group", field.group}, {"value", value}, {"default", usual}, {"differs", differs}});
  }
  for (const auto& [name, value] : options.items()) // of another version
    if (const OptionField* const field = find_field(name); !field || field->not_stored)
      out.push_back({{"name", name}, {"group", "Other"}, {"value", value}, {"default", nullptr}, {"differs", ""}});
  return out;
}

Json device_json(const MetricTable& device) { // min, mean and max of each column
  Json out = Json::object();
  for (const auto& [name, values] : device.columns) {
    Statistics all;
    for (const double value : values) all.add(value);
    if (all.count > 0)
      out[name] = {{"min", number_json(all.min)}, {"mean", number_json(all.mean())}, {"max", number_json(all.max)}};
  }
  return out;
}

size_t cells_of(const PageGroup& group) {
  const RunMetrics& metrics = group.runs.front()->metrics();
  return 3 * metrics.fp8_tensors.tensors.size() * metrics.fp8_tensors.at.size();
}

// The events of all seeds, prefixed with the name of the run.
std::vector<RunEvent> events_of(const PageGroup& group) {
  std::vector<RunEvent> events;
  for (const RunReader* run : group.runs)
    for (RunEvent event : run->metrics().events) {
      if (group.runs.size() > 1) event.text = run->name() + ": " + event.text;
      events.push_back(std::move(event));
    }
  std::stable_sort(events.begin(), events.end(),
                   [](const RunEvent& a, const RunEvent& b) { return a.from.step < b.from.step; });
  return events;
}

// The worst state of the runs.
std::string state_of(const PageGroup& group) {
  std::set<std::string> states;
  for (const RunReader* run : group.runs) states.insert(state_of(*run));
  for (const char* state : {"running", "diverged", "failed", "stopped"})
    if (states.contains(state)) return state;
  return "done";
}

Json options_of(const PageGroup& group) {
  Json options = group.runs.front()->metrics().lives.back()["options"];
  if (group.runs.size() == 1) return options;
  std::vector<std::string> seeds;
  for (const RunReader* run : group.runs)
    seeds.push_back(run->metrics().lives.back()["options"].value("seed", Json()).dump());
  options["seed"] = listed(seeds);
  return options;
}

Json run_json(const PageGroup& group, size_t runs, double share_of_cells) {
  const RunReader& run = *group.runs.front();
  const RunMetrics& m = run.metrics();
  const Json& life = m.lives.back();
  Json out = {{"name", group.name},
              {"state", state_of(group)},
              {"model", model_text(life)},
              {"last_timestamp", m.last_timestamp},
              {"skips_in_a_row", m.skips_in_a_row}};
  for (const char* field :
       {"version", "host", "cpu_threads", "device", "precision", "parameters", "max_steps", "tokens_per_step"})
    out[field] = life.value(field, Json());
  out["tokens_left"] = number_json(tokens_left(life, m.steps.at.empty() ? 0 : m.steps.at.back().step));
  for (size_t i = 0; i < m.lives.size(); ++i) {
    Json one;
    for (const char* field : {"event", "timestamp", "host", "device", "precision"})
      one[field] = m.lives[i].value(field, Json());
    put_moment(one, m.life_at[i]);
    out["lives"].push_back(std::move(one));
  }
  const size_t other_points = kOtherPoints / std::min<size_t>(runs, 8);
  out["steps"] = table_json(group, &RunMetrics::steps, std::max<size_t>(std::min(kPointsOfOne, kPoints / runs), 60));
  out["validations"] = table_json(group, &RunMetrics::validations, other_points);
  out["hellaswags"] = table_json(group, &RunMetrics::hellaswags, other_points);
  out["fp8"] = table_json(group, &RunMetrics::fp8, other_points);
  out["heat"] =
      heat_map_json(m.fp8_tensors, static_cast<size_t>(share_of_cells * static_cast<double>(cells_of(group))));
  out["machine"] = device_json(m.device);
  out["events"] = events_json(events_of(group), std::max<size_t>(kEvents / runs, 40));
  out["samples"] = samples_json(m.samples, kSampleBytes / runs);
  out["samples_written"] = m.samples.size();
  out["settings"] = settings_json(options_of(group));
  return out;
}

} // namespace

Json number_json(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == std::round(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::general, 6).ptr;
  double rounded = 0;
  std::from_chars(digits, end, rounded);
  return rounded;
}

Json numbers_json(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double value : values) out.push_back(number_json(value));
  return out;
}

Json page_data(const std::vector<PageGroup>& groups) {
  Json out = {{"runs", Json::array()}};
  size_t cells = 1;
  for (const PageGroup& group : groups) cells += cells_of(group);
  const double share = std::min(1.0, static_cast<double>(kCells) / static_cast<double>(cells));
  for (const PageGroup& group : groups) out["runs"].push_back(run_json(group, groups.size(), share));
  return out;
}

Json page_data(const std::vector<RunReader>& runs) {
  std::vector<PageGroup> groups;
  for (const RunReader& run : runs) groups.push_back({run.name(), {&run}});
  return page_data(groups);
}

} // namespace gpt2
