// The report as one HTML file: style, scripts and data in it, nothing fetched from anywhere.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpt2 {

enum class Refresh {
  none,
  reload, // a file that is rewritten: the page loads itself again
  fetch,  // from bin/report --serve: the page asks for data.json
};

std::string escaped_html(const std::string& text);
std::string json_text(const nlohmann::json& data); // for a page: no `<` in it, valid UTF-8
std::string page_html(const nlohmann::json& data, const std::string& title, Refresh refresh, double seconds);

} // namespace gpt2
