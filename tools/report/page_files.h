// The files of tools/report/page/, embedded into the program by cmake/embed_files.cmake.
#pragma once

#include <string_view>

namespace gpt2 {

extern const std::string_view kPageHtml, kPageCss, kNumbersJs, kChartJs, kEventsJs, kFp8Js, kDetailsJs, kComparisonJs,
    kPageJs;

} // namespace gpt2
