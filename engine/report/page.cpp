#include "engine/report/page.h"

#include <string_view>

#include "engine/report/page_files.h"

namespace gpt2 {
namespace {

std::string filled(std::string_view page, const std::string& mark, std::string_view text) {
  const size_t at = page.find(mark);
  return std::string(page.substr(0, at)).append(text).append(page.substr(at + mark.size()));
}

const char* name_of(Refresh refresh) {
  return refresh == Refresh::reload ? "reload" : refresh == Refresh::fetch ? "fetch" : "none";
}

} // namespace

std::string escaped_html(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string json_text(const nlohmann::json& data) {
  const std::string text = data.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) { // "</script>" in a sample would end the element that holds the data
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

std::string page_html(const nlohmann::json& data, const std::string& title, Refresh refresh, double seconds) {
  nlohmann::json whole = data;
  whole["refresh"] = {{"how", name_of(refresh)}, {"seconds", seconds}};
  std::string page = filled(kPageHtml, "@TITLE@", escaped_html(title));
  page = filled(page, "@CSS@", kPageCss);
  page = filled(page, "@NUMBERS_JS@", kNumbersJs);
  page = filled(page, "@CHART_JS@", kChartJs);
  page = filled(page, "@EVENTS_JS@", kEventsJs);
  page = filled(page, "@FP8_JS@", kFp8Js);
  page = filled(page, "@DETAILS_JS@", kDetailsJs);
  page = filled(page, "@COMPARISON_JS@", kComparisonJs);
  page = filled(page, "@PAGE_JS@", kPageJs);
  return filled(page, "@DATA@", json_text(whole));
}

} // namespace gpt2
