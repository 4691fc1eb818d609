#include "tools/report/terminal_screen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/system/terminal.h"
#include "tools/report/cut_text.h"
#include "tools/report/run_state.h"
#include "tools/report/terminal_curve.h"

namespace gpt2 {
namespace {

constexpr size_t kFewestCurveRows = 4;
constexpr size_t kLossSteps = 20, kSpeedSteps = 50; // averaged
constexpr double kMuchSaturated = 0.01;             // share of a tensor (docs/fp8.md)

// ---- lines ----

// Text from a file must not control the terminal: control characters (C0, C1) become blanks.
std::string printable(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 = byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    out += byte < 0x20 || byte == 0x7f || c1 ? ' ' : text[i];
    i += c1 ? 1 : 0;
  }
  return out;
}

class Line { // colored parts, cut to the width of the screen
 public:
  explicit Line(const ScreenSize& size) : left_(size.columns), color_(size.color) {}

  Line& add(const std::string& text, Color color = Color::plain) {
    std::string part = printable(text);
    if (text_width(part) > left_) part = cut_to(part, left_, Cut::end);
    if (text_width(part) > left_) part.clear(); // no room for "..."
    left_ -= text_width(part);
    if (!part.empty()) text_ += color_ ? colored(part, color) : part;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  size_t left_;
  bool color_;
  std::string text_;
};

// ---- numbers ----

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

// The number of points at the start that the loss axis ignores: the first 85 % of the drop, but at least 5 % and at
// most half of the points.
size_t first_fall(const std::vector<double>& losses) {
  if (losses.size() <= 40) return 0;
  double first = std::nan(""), low = std::nan("");
  for (const double loss : losses) {
    if (!std::isfinite(loss)) continue;
    if (std::isnan(first)) first = loss;
    low = std::fmin(low, loss);
  }
  const auto fallen =
      std::find_if(losses.begin(), losses.end(), [&](double loss) { return loss <= first - 0.85 * (first - low); });
  return std::clamp(static_cast<size_t>(fallen - losses.begin()), losses.size() / 20, losses.size() / 2);
}

std::string step_text(int64_t step) { return "step " + std::to_string(step); }

std::string word_of(const nlohmann::json& life, const char* name) {
  const nlohmann::json value = life.value(name, nlohmann::json());
  return value.is_string() ? value.get<std::string>() : "-";
}

std::string event_words(const std::string& kind) {
  static const std::map<std::string, std::string> kWords = {{"resume", "resumed"},
                                                            {"skip", "step skipped"},
                                                            {"bad_data", "bad data"},
                                                            {"fallback", "block to BF16"},
                                                            {"fp8_lag", "FP8 scale lags"},
                                                            {"throttle", "GPU throttled"},
                                                            {"save", "saved"},
                                                            {"save_failed", "not saved"}};
  const auto found = kWords.find(kind);
  return found == kWords.end() ? kind : found->second;
}

Color color_of(const std::string& state) {
  if (state == "running") return Color::cyan;
  if (state == "done") return Color::green;
  return state == "stopped" ? Color::yellow : Color::red;
}

// ---- the parts of the screen ----

class Screen {
 public:
  Screen(const RunReader& run, const ScreenSize& size)
      : run_(run), m_(run.metrics()), life_(m_.lives.back()), size_(size), state_(state_of(run)) {}

  std::vector<std::string> lines() {
    add_title();
    if (m_.steps.at.empty()) {
      line().add("no step yet");
    } else {
      add_progress();
      add_losses();
      const std::vector<Line> above = std::exchange(lines_, {});
      add_rates();
      add_fp8();
      add_gpu();
      add_events();
      const std::vector<Line> below = std::exchange(lines_, above);
      const size_t used = above.size() + below.size() + 1; // and the x axis
      add_curve(std::max(kFewestCurveRows, size_.rows > used ? size_.rows - used : 0));
      lines_.insert(lines_.end(), below.begin(), below.end());
    }
    std::vector<std::string> out;
    for (size_t i = 0; i < std::min(lines_.size(), size_.rows); ++i) out.push_back(lines_[i].text());
    return out;
  }

 private:
  Line& line() { return lines_.emplace_back(size_); }
  Line& more() { return lines_.back(); }

  void add_title() {
    line().add(run_.name(), Color::bold).add("  ").add(state_, color_of(state_));
    more().add("  " + word_of(life_, "precision") + " on " + word_of(life_, "device"), Color::dim);
    const std::string model = model_text(life_);
    if (size_.rows >= 30 && !model.empty()) line().add(model, Color::dim);
  }

  void add_progress() {
    const Moment& now = m_.steps.at.back();
    const double plan = life_["max_steps"].get<double>(), done = static_cast<double>(now.step);
    const double share = std::clamp(done / std::max(plan, 1.0), 0.0, 1.0);
    const double speed = mean_of_last(m_.steps.columns.at("tokens_per_sec"), kSpeedSteps);
    line().add(step_text(now.step), Color::bold).add(formatted(" of %.0f (%.1f %%)", plan, 100 * share));
    more().add("  " + format_count(now.tokens) + " tokens  " + format_duration(now.seconds) + " elapsed");
    if (state_ == "running" && speed > 0)
      more().add("  about " + format_duration(tokens_left(life_, now.step) / speed) + " left");
    const auto full = static_cast<size_t>(share * static_cast<double>(size_.columns));
    std::string filled, rest;
    for (size_t i = 0; i < size_.columns; ++i) (i < full ? filled : rest) += i < full ? "━" : "─";
    line().add(filled, color_of(state_)).add(rest, Color::dim);
  }

  void add_losses() {
    const double loss = mean_of_last(m_.steps.columns.at("loss"), kLossSteps);
    const size_t averaged = std::min(kLossSteps, m_.steps.at.size());
    line().add("train loss ").add(number_text(loss, "%.4f"), Color::bold);
    more().add(averaged == 1 ? " (last step)" : formatted(" (mean of the last %zu steps)", averaged), Color::dim);
    line().add("validation loss ");
    if (m_.validations.at.empty()) {
      const bool off = life_["options"].value("eval_freq", nlohmann::json()) == 0;
      more().add(off                   ? "not evaluated (--eval_freq 0)"
                 : state_ == "running" ? "not evaluated yet"
                                       : "not evaluated",
                 Color::dim);
      return;
    }
    const std::vector<double>& all = m_.validations.columns.at("val_loss");
    const auto best = std::min_element(all.begin(), all.end(),
                                       [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); });
    more().add(number_text(all.back(), "%.4f"), Color::bold).add(" at " + step_text(m_.validations.at.back().step));
    const int64_t best_step = m_.validations.at[static_cast<size_t>(best - all.begin())].step;
    more().add("  best ").add(number_text(*best, "%.4f"), Color::green).add(" at " + step_text(best_step));
  }

  void add_curve(size_t rows) {
    const std::vector<double>& losses = m_.steps.columns.at("loss");
    const std::vector<double> points = binned(losses, 2 * size_.columns);
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (size_t i = first_fall(points); i < points.size(); ++i) {
      if (!std::isfinite(points[i])) continue;
      low = std::min(low, points[i]);
      high = std::max(high, points[i]);
    }
    if (!(low <= high)) {
      line().add("no loss yet");
      return;
    }
    if (high - low < 1e-6) low -= 0.5, high += 0.5;
    std::vector<double> drawn = losses; // without the start of the first fall, above the axis
    for (size_t i = 0; i < drawn.size() && !(drawn[i] <= high); ++i) drawn[i] = std::nan("");
    for (const std::string& row : labelled_curve(drawn, low, high, size_.columns, rows, "%.3f")) {
      const size_t axis_end = row.find("│") + std::string("│").size();
      line().add(row.substr(0, axis_end), Color::dim).add(row.substr(axis_end), Color::cyan);
    }
    const std::string last = step_text(m_.steps.at.back().step);
    line().add(labelled_axis(step_text(m_.steps.at.front().step), last, size_.columns), Color::dim);
  }

  // "gradient norm      1.5  ▁▂▃  remark"
  void add_rate(const std::string& name, const std::string& value, const std::vector<double>& values, Bin bin,
                const std::string& remark) {
    const size_t width = size_.columns > 70 ? size_.columns - 46 : size_.columns > 34 ? size_.columns - 24 : 10;
    line().add(formatted("%-14s", name.c_str()), Color::dim).add(formatted("%8s  ", value.c_str()), Color::bold);
    more().add(sparkline(binned(values, width, bin)), Color::cyan).add("  " + remark, Color::dim);
  }

  void add_rates() {
    const auto& steps = m_.steps.columns;
    const double speed = mean_of_last(steps.at("tokens_per_sec"), kSpeedSteps);
    const double peak_share = mean_of_last(steps.at("speed_of_light"), kSpeedSteps);
    add_rate("gradient norm", number_text(last_number(m_.steps, "grad_norm"), "%.3g"), steps.at("grad_norm"), Bin::max,
             "max of each column");
    add_rate("tokens/s", std::isfinite(speed) ? format_count(speed) : "-", steps.at("tokens_per_sec"), Bin::mean,
             std::isfinite(peak_share) ? formatted("%.1f %% of peak", 100 * peak_share) : "");
    add_rate("learning rate", number_text(last_number(m_.steps, "lr"), "%.3g"), steps.at("lr"), Bin::mean, "");
  }

  void add_fp8() {
    if (m_.fp8.at.empty()) return;
    const double saturated = last_number(m_.fp8, "worst_saturated"), flushed = last_number(m_.fp8, "worst_flushed");
    const double blocks = last_number(m_.fp8, "blocks_in_bf16");
    line().add("FP8  ", Color::dim).add("worst tensor: ");
    more().add(number_text(100 * saturated, "%.2g %% saturated"),
               saturated > kMuchSaturated ? Color::red : Color::plain);
    more().add(", " + number_text(100 * flushed, "%.2g %% flushed to zero"));
    more().add(", blocks in BF16: " + number_text(blocks, "%.0f"), blocks > 0 ? Color::yellow : Color::plain);
  }

  void add_gpu() {
    if (m_.device.at.empty()) return;
    std::string text;
    const auto add = [&](const char* name, double factor, const char* format) {
      const double value = last_number(m_.device, name);
      if (std::isfinite(value)) text += (text.empty() ? "" : "  ") + formatted(format, factor * value);
    };
    add("gpu_utilization", 100, "%.0f %% busy");
    add("gpu_memory_gb", 1, "%.1f GB");
    add("gpu_power_watts", 1, "%.0f W");
    add("gpu_temperature_c", 1, "%.0f °C");
    add("gpu_sm_clock_mhz", 1, "%.0f MHz");
    line().add("GPU  ", Color::dim).add(text);
    if (last_number(m_.device, "gpu_throttled") == 1) more().add("  throttled", Color::red);
  }

  // The last save and the last few other events: saves are frequent and would hide the others.
  void add_events() {
    const size_t most_others = 3 + (size_.rows > 24 ? (size_.rows - 24) / 3 : 0);
    std::vector<const RunEvent*> chosen;
    size_t saves = 0, others = 0;
    for (auto event = m_.events.rbegin(); event != m_.events.rend(); ++event)
      if (event->kind == "save" ? saves++ < 1 : others++ < most_others) chosen.push_back(&*event);
    for (auto event = chosen.rbegin(); event != chosen.rend(); ++event) {
      const std::string& kind = (*event)->kind;
      const bool good = kind == "save" || kind == "resume";
      line().add(formatted("%-12s", step_text((*event)->from.step).c_str()), Color::dim);
      more().add(event_words(kind), good ? Color::green : Color::yellow).add(": " + (*event)->text);
    }
  }

  const RunReader& run_;
  const RunMetrics& m_;
  const nlohmann::json& life_;
  const ScreenSize size_;
  const std::string state_;
  std::vector<Line> lines_;
};

} // namespace

std::vector<std::string> terminal_screen(const RunReader& run, const ScreenSize& size) {
  return Screen(run, size).lines();
}

} // namespace gpt2
