#include "tools/report/run_table.h"

#include <algorithm>
#include <cmath>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/system/terminal.h"
#include "tools/report/cut_text.h"
#include "tools/report/run_state.h"

namespace gpt2 {
namespace {

constexpr size_t kNameColumns = 34; // leaves 46 of 80 columns for the numbers

std::string loss_text(double loss) { return std::isfinite(loss) ? formatted("%.4f", loss) : "-"; }

// Keeps the end: names of a sweep differ there.
std::string shortened(const std::string& name) { return cut_to(name, kNameColumns, Cut::begin); }

} // namespace

double last_validation(const RunReader& run) {
  const MetricTable& table = run.metrics().validations;
  return table.at.empty() ? kMissing : table.columns.at("val_loss").back();
}

double typical_speed(const RunReader& run) {
  const MetricTable& steps = run.metrics().steps;
  if (steps.at.empty()) return kMissing;
  std::vector<double> speeds = steps.columns.at("tokens_per_sec");
  std::erase_if(speeds, [](double speed) { return !std::isfinite(speed); });
  if (speeds.empty()) return kMissing;
  const auto middle = speeds.begin() + static_cast<ptrdiff_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end());
  return *middle;
}

std::vector<std::string> run_table(const std::vector<RunReader>& runs) {
  std::vector<std::vector<std::string>> rows{{"run", "val loss", "lowest", "tok/s", "time", "state"}};
  for (const RunReader& run : runs) {
    const RunMetrics& m = run.metrics();
    double lowest = kMissing;
    if (!m.validations.at.empty())
      for (const double loss : m.validations.columns.at("val_loss")) lowest = std::fmin(lowest, loss);
    const double speed = typical_speed(run);
    rows.push_back({shortened(run.name()), loss_text(last_validation(run)), loss_text(lowest),
                    std::isfinite(speed) ? format_count(speed) : "-",
                    m.steps.at.empty() ? "-" : format_duration(m.steps.at.back().seconds), state_of(run)});
  }
  return aligned_columns(rows);
}

std::vector<std::string> aligned_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], text_width(row[i]));
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - text_width(row[i]), ' ');
      line += i == 0 ? row[i] + blanks : "  " + blanks + row[i];
    }
    lines.push_back(line);
  }
  return lines;
}

} // namespace gpt2
