// The report as one HTML file with style, scripts and data. It loads nothing else.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpt2 {

enum class Refresh {
  none,
  reload, // bin/report --watch rewrites the file: the page reloads itself
  fetch,  // bin/report --serve: the page fetches data.json
};

std::string escaped_html(const std::string& text);
std::string json_text(const nlohmann::json& data); // for a page: without `<`, valid UTF-8
std::string page_html(const nlohmann::json& data, const std::string& title, Refresh refresh, double seconds);

// Writes it. Returns "PATH: SIZE" for the log.
std::string write_page(const std::string& path, const nlohmann::json& data, const std::string& title,
                       Refresh refresh = Refresh::none, double seconds = 0);

} // namespace gpt2
