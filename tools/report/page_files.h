// The files of tools/report/page/, made part of the program by cmake/embed_files.cmake: a report needs none at run
// time.
#pragma once

#include <string_view>

namespace gpt2 {

extern const std::string_view kPageHtml, kPageCss, kNumbersJs, kChartJs, kEventsJs, kFp8Js, kDetailsJs, kComparisonJs,
    kPageJs;

} // namespace gpt2
