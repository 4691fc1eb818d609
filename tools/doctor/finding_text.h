// Findings as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/finding.h"

namespace gpt2 {

// " ok   GPU 0        NVIDIA H200, ...", with the advice on the next line.
std::string finding_text(const Finding& finding, bool colour, size_t columns);
std::string summary_text(const std::vector<Finding>& findings, double seconds, bool colour); // "12 ok, 1 warning"
std::string findings_json(const std::vector<Finding>& findings);                             // one line

// 0, or the exit code of the first failure.
ExitCode exit_code_of(const std::vector<Finding>& findings);

} // namespace gpt2
