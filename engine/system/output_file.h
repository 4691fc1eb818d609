// Files that a user names for what a program writes. A file that no program of this tree has written is replaced only
// when the user says --overwrite; an earlier output of the same kind is replaced without it.
#pragma once

#include <string>
#include <string_view>

namespace gpt2 {

struct OutputKind {
  std::string_view name;                 // "a report page"
  std::string_view start;                // each such file begins with it,
  std::string_view marker;               // and has this in its first 2 KiB
  std::string_view older = {};           // what files of earlier versions have instead; "": the same
  std::string_view flag = "--overwrite"; // that replaces any file; "": there is none
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
// the work, not after hours of it. An empty path is no file.
void refuse_foreign_file(const std::string& path, const OutputKind& kind, bool overwrite);

} // namespace gpt2
