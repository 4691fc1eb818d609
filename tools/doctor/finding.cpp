#include "tools/doctor/finding.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/log.h"
#include "engine/system/terminal.h"

namespace gpt2 {
namespace {

constexpr size_t kNameColumn = 7, kTextColumn = 24;

std::string word_of(Level level) { return level == Level::ok ? "ok" : level == Level::warn ? "warn" : "fail"; }

std::string colored(const std::string& text, Level level, bool color) {
  if (!color) return text;
  return colored(text, level == Level::ok ? Color::green : level == Level::warn ? Color::yellow : Color::red);
}

Level worst_of(const std::vector<Finding>& findings) {
  Level worst = Level::ok;
  for (const Finding& finding : findings) worst = std::max(worst, finding.level);
  return worst;
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size() + 1, width), ' ');
  return text;
}

} // namespace

std::string finding_text(const Finding& finding, bool color, size_t columns) {
  const std::string word = word_of(finding.level),
                    body = padded(finding.name, kTextColumn - kNameColumn) + finding.what;
  const std::string line = wrap_text(std::string(kNameColumn, ' ') + body, columns, kTextColumn).substr(kNameColumn);
  const std::string advice =
      finding.advice.empty()
          ? ""
          : "\n" + wrap_text(std::string(kTextColumn, ' ') + "-> " + finding.advice, columns, kTextColumn + 3);
  return colored(padded(" " + word, kNameColumn), finding.level, color) + line + advice;
}

std::string summary_text(const std::vector<Finding>& findings, double seconds, bool color) {
  const auto count = [&](Level level) { return std::ranges::count(findings, level, &Finding::level); };
  const Level worst = worst_of(findings);
  const std::string verdict = worst == Level::ok     ? "ready to train"
                              : worst == Level::warn ? "a run will work; see the warnings"
                                                     : "a run would fail";
  return colored(std::to_string(count(Level::ok)) + " ok, " + std::to_string(count(Level::warn)) + " warn, " +
                     std::to_string(count(Level::fail)) + " fail in " + format_duration(seconds) + ": " + verdict,
                 worst, color);
}

std::string findings_json(const std::vector<Finding>& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings)
    list.push_back({{"name", finding.name},
                    {"level", word_of(finding.level)},
                    {"what", finding.what},
                    {"advice", finding.advice}});
  const nlohmann::json json{{"verdict", word_of(worst_of(findings))},
                            {"exit_code", static_cast<int>(exit_code_of(findings))},
                            {"findings", list}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ExitCode exit_code_of(const std::vector<Finding>& findings) {
  const auto failed = std::ranges::find(findings, Level::fail, &Finding::level);
  return failed == findings.end() ? ExitCode::done : failed->code;
}

} // namespace gpt2
