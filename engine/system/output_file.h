// Output files named by the user. A file that is not an earlier output of the same kind is replaced only with
// --overwrite.
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

constexpr OutputKind kPageOutput{"a page of bin/report, bin/compare or bin/sweep", "<!DOCTYPE html>\n",
                                 "<meta name=\"generator\" content=\"train_gpt2_fp8\">",
                                 "img-src data:; connect-src 'self'\">\n<link rel=\"icon\" href=\"data:,\">"};
constexpr OutputKind kDetailsOutput{"the details of an evaluation", "{\"task\":\"", "\",\"index\":0,\"right\":"};
constexpr OutputKind kCurveOutput{"a curve of bin/lr_schedule", "<svg xmlns=", "role=\"img\">\n<title>learning rate: "};
constexpr OutputKind kSlurmOutput{"a job script of bin/sweep", "#!", "# A Slurm job array, one task per run.",
                                  "# A Slurm array, one task a run."};
constexpr OutputKind kDatasetOutput{"a manifest of bin/prepare_data",
                                    "{\n \"format\": ", "\"format\": \"GPT-2 token shards\""};
constexpr OutputKind kTimelineOutput{"a timeline of the trainer",
                                     "[\n{\"name\": ", "\"ph\": \"X\", \"pid\": 0, \"tid\": \"", "", ""};

// Throws Error(usage) if `path` is a file that is neither empty nor of that kind, unless `overwrite`. Call it before
// the work. An empty path is accepted.
void refuse_foreign_file(const std::string& path, const OutputKind& kind, bool overwrite);

} // namespace gpt2
