// The kinds of files that tools write under a name given by the user.
#pragma once

#include "engine/system/output_file.h"

namespace gpt2 {

constexpr OutputKind kPageOutput{"a page of bin/report, bin/compare or bin/sweep", "<!DOCTYPE html>\n",
                                 "<meta name=\"generator\" content=\"train_gpt2_fp8\">",
                                 "img-src data:; connect-src 'self'\">\n<link rel=\"icon\" href=\"data:,\">"};
constexpr OutputKind kDetailsOutput{"the details of an evaluation", "{\"task\":\"", "\",\"index\":0,\"right\":"};
constexpr OutputKind kCurveOutput{"a curve of bin/lr_schedule", "<svg xmlns=", "role=\"img\">\n<title>learning rate: "};
constexpr OutputKind kSlurmOutput{"a job script of bin/sweep", "#!", "# A Slurm job array, one task per run.",
                                  "# A Slurm array, one task a run."};
constexpr OutputKind kDatasetOutput{"a manifest of bin/prepare_data",
                                    "{\n \"format\": ", "\"format\": \"GPT-2 token shards\""};

} // namespace gpt2
