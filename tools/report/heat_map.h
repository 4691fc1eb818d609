// FP8 health over layers and steps: the `fp8_tensor` lines in compact form.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/report/run_metrics.h"

namespace gpt2 {

// A cell as two base64 characters: 0 is "no value", 1 is zero, 2 to 4095 are logarithmic from 1e-12 to 1e8 in steps of
// 1.1 %. page/fp8.js decodes them.
std::string heat_code(double value);

// {"step": [..], "tokens": [..], "seconds": [..], "layers": ["h.0", ..., "lm_head"],
//  "kinds": {"fc/act": {"amax": ["codes of a layer", ..], "saturated": [..], "flushed": [..]}}}
// "telling_flushed" is "flushed" without the `gelu_tail` records, for layers that have such records: GELU's tail says
// nothing about the scale. A column holds the largest value of its records; all maps together have at most
// `most_cells`.
nlohmann::json heat_map_json(const TensorRecords& records, size_t most_cells);

} // namespace gpt2
