#include "tools/report/terminal_screen.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "tools/report/page_data.h"
#include "tools/report/terminal_curve.h"
#include "tools/report/thinning.h"

namespace gpt2 {
namespace {

constexpr size_t kCurveRows = 9;
constexpr size_t kOtherEvents = 3;  // than saves
constexpr double kFirstFall = 0.05; // of the steps: the curve's axis leaves them out

double last_number(const MetricTable& table, const std::string& name) {
  const auto column = table.columns.find(name);
  return column == table.columns.end() || column->second.empty() ? std::nan("") : column->second.back();
}

double mean_of_last(const std::vector<double>& values, size_t count) {
  double sum = 0, known = 0;
  for (size_t i = values.size() - std::min(count, values.size()); i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    sum += values[i];
    ++known;
  }
  return known > 0 ? sum / known : std::nan("");
}

std::string number_text(double value, const char* format) {
  return std::isfinite(value) ? formatted(format, value) : "-";
}

// So many characters, not bytes; a text from a file steers no terminal.
std::string cut(const std::string& line, size_t columns) {
  std::string out;
  size_t width = 0;
  for (const char c : line) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) != 0x80 && ++width > columns) break;
    out += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  return out;
}

std::vector<std::string> loss_curve(const std::vector<double>& losses, size_t columns) {
  const std::vector<double> points = stretched(losses, 2 * columns);
  double low = std::numeric_limits<double>::infinity(), high = -low;
  const size_t from = points.size() > 40 ? static_cast<size_t>(kFirstFall * static_cast<double>(points.size())) : 0;
  for (size_t i = from; i < points.size(); ++i) {
    if (!std::isfinite(points[i])) continue;
    low = std::min(low, points[i]);
    high = std::max(high, points[i]);
  }
  if (!(low <= high)) return {"no loss yet"};
  if (high - low < 1e-6) low -= 0.5, high += 0.5;
  return labelled_curve(losses, low, high, columns, kCurveRows, "%.3f");
}

// The last save, and the last few of all else: saves alone would tell little.
std::vector<RunEvent> last_events(const std::vector<RunEvent>& events) {
  std::vector<RunEvent> out;
  size_t saves = 0, others = 0;
  for (auto event = events.rbegin(); event != events.rend(); ++event)
    if (event->kind == "save" ? saves++ < 1 : others++ < kOtherEvents) out.push_back(*event);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string progress_bar(double share, size_t columns) {
  const size_t full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(columns));
  std::string bar;
  for (size_t i = 0; i < columns; ++i) bar += i < full ? "━" : "─";
  return bar;
}

std::string machine_line(const MetricTable& device) {
  std::string line;
  const auto add = [&](const char* name, double factor, const char* format) {
    const double value = last_number(device, name);
    if (std::isfinite(value)) line += (line.empty() ? "" : "  ") + formatted(format, factor * value);
  };
  add("gpu_utilization", 100, "%.0f %% busy");
  add("gpu_memory_gb", 1, "%.1f GB");
  add("gpu_power_watts", 1, "%.0f W");
  add("gpu_temperature_c", 1, "%.0f °C");
  add("gpu_sm_clock_mhz", 1, "%.0f MHz");
  if (last_number(device, "gpu_throttled") == 1) line += "  THROTTLED";
  return line;
}

} // namespace

std::vector<std::string> terminal_screen(const RunReader& run, size_t columns) {
  const RunMetrics& m = run.metrics();
  const nlohmann::json& life = m.lives.back();
  const auto word = [&](const char* name) {
    const nlohmann::json value = life.value(name, nlohmann::json());
    return value.is_string() ? value.get<std::string>() : std::string("-");
  };
  const std::string state = state_of(run);
  std::vector<std::string> lines = {run.name() + "  " + state + "  " + word("precision") + "  " + word("device")};
  if (m.steps.at.empty()) {
    lines.push_back("no step yet");
    return lines;
  }

  const Moment& now = m.steps.at.back();
  const auto& steps = m.steps.columns;
  const double plan = life["max_steps"].get<double>(), share = static_cast<double>(now.step) / std::max(plan, 1.0);
  const double speed = mean_of_last(steps.at("tokens_per_sec"), 50);
  lines.push_back(formatted("step %lld of %.0f (%.1f %%)  ", static_cast<long long>(now.step), plan, 100 * share) +
                  format_count(now.tokens) + " tokens  " + format_duration(now.seconds));
  if (state == "running" && speed > 0) {
    const double left = (plan - static_cast<double>(now.step)) * life["tokens_per_step"].get<double>() / speed;
    lines.back() += "  about " + format_duration(std::max(left, 0.0)) + " to go";
  }
  lines.push_back(progress_bar(share, columns));

  std::string loss = "loss " + number_text(mean_of_last(steps.at("loss"), 20), "%.4f") + " (mean of 20)";
  if (!m.validations.at.empty()) {
    const std::vector<double>& all = m.validations.columns.at("val_loss");
    const auto best = std::min_element(all.begin(), all.end(),
                                       [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); });
    loss +=
        "  validation " + number_text(all.back(), "%.4f") + ", best " + number_text(*best, "%.4f") +
        formatted(" at %lld", static_cast<long long>(m.validations.at[static_cast<size_t>(best - all.begin())].step));
  }
  lines.push_back(loss);
  for (std::string& line : loss_curve(steps.at("loss"), columns)) lines.push_back(std::move(line));

  lines.push_back(labelled_axis(std::to_string(m.steps.at.front().step), std::to_string(now.step), columns));

  const size_t spark = columns > 50 ? columns - 40 : 10;
  lines.push_back(formatted("norm  %9s  ", number_text(last_number(m.steps, "grad_norm"), "%.3g").c_str()) +
                  sparkline(stretched(steps.at("grad_norm"), spark, /*greatest=*/true)) + "  greatest");
  const double light = mean_of_last(steps.at("speed_of_light"), 50);
  lines.push_back(formatted("speed %7s/s  ", std::isfinite(speed) ? format_count(speed).c_str() : "-") +
                  sparkline(stretched(steps.at("tokens_per_sec"), spark)) +
                  (std::isfinite(light) ? formatted("  %.1f %% of light", 100 * light) : "  tokens"));
  lines.push_back("rate  " + formatted("%9s", number_text(last_number(m.steps, "lr"), "%.3g").c_str()));
  if (!m.fp8.at.empty())
    lines.push_back("FP8   worst saturated " + number_text(100 * last_number(m.fp8, "worst_saturated"), "%.2g %%") +
                    ", flushed " + number_text(100 * last_number(m.fp8, "worst_flushed"), "%.2g %%") +
                    ", blocks in BF16 " + number_text(last_number(m.fp8, "blocks_in_bf16"), "%.0f"));
  if (!m.device.at.empty()) lines.push_back("GPU   " + machine_line(m.device));
  for (const RunEvent& event : last_events(m.events))
    lines.push_back(formatted("%7lld ", static_cast<long long>(event.from.step)) + event.kind + ": " + event.text);
  for (std::string& line : lines) line = cut(line, columns);
  return lines;
}

} // namespace gpt2
