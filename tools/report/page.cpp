#include "tools/report/page.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "engine/base/log.h"
#include "engine/system/files.h"
#include "tools/report/page_files.h"

namespace gpt2 {
namespace {

struct Part {
  std::string_view mark, text;
};

// The page with each mark replaced. What is put in is not searched: a run may be named @DATA@.
std::string filled(std::string_view page, std::initializer_list<Part> parts) {
  std::string out;
  for (size_t at = 0; at < page.size();) {
    const size_t mark = std::min(page.find('@', at), page.size());
    out += page.substr(at, mark - at);
    const auto* const part = std::find_if(parts.begin(), parts.end(),
                                          [&](const Part& each) { return page.substr(mark).starts_with(each.mark); });
    if (part != parts.end())
      out += part->text;
    else
      out += page.substr(mark, 1); // any other @
    at = mark + (part != parts.end() ? part->mark.size() : 1);
  }
  return out;
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
  return filled(kPageHtml, {{"@TITLE@", escaped_html(title)},
                            {"@CSS@", kPageCss},
                            {"@NUMBERS_JS@", kNumbersJs},
                            {"@CHART_JS@", kChartJs},
                            {"@EVENTS_JS@", kEventsJs},
                            {"@FP8_JS@", kFp8Js},
                            {"@DETAILS_JS@", kDetailsJs},
                            {"@COMPARISON_JS@", kComparisonJs},
                            {"@PAGE_JS@", kPageJs},
                            {"@DATA@", json_text(whole)}});
}

std::string write_page(const std::string& path, const nlohmann::json& data, const std::string& title, Refresh refresh,
                       double seconds) {
  const std::string page = page_html(data, title, refresh, seconds);
  write_file_atomic(path, page);
  return path + ": " + format_bytes(static_cast<double>(page.size()));
}

} // namespace gpt2
