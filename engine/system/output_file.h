// Output files named by the user. A file that is not an earlier output of the same kind is replaced only with
// --overwrite. The kinds of the tools are in tools/common/output_kinds.h.
#pragma once

#include <string>
#include <string_view>

namespace gpt2 {

struct OutputKind {
  std::string_view name;                 // "a report page"
  std::string_view start;                // the first bytes of each such file
  std::string_view marker;               // a text in its first 2 KiB
  std::string_view older = {};           // the text in files of earlier versions; "": the same
  std::string_view flag = "--overwrite"; // replaces any file; "": none
};

constexpr OutputKind kTimelineOutput{"a timeline of the trainer",
                                     "[\n{\"name\": ", "\"ph\": \"X\", \"pid\": 0, \"tid\": \"", "", ""};

// Throws Error(usage) if `path` is a file that is neither empty nor of that kind, unless `overwrite`. Call it before
// the work. An empty path is accepted.
void refuse_foreign_file(const std::string& path, const OutputKind& kind, bool overwrite);

} // namespace gpt2
