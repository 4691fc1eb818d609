// FP8 health over layers and steps: what `fp8_tensor` lines say, in few bytes.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/report/run_metrics.h"

namespace gpt2 {

// A cell in two characters of base64: 0 is "none", 1 is zero, 2 to 4095 are the logarithms from 1e-12 to 1e8, each 1.1
// % above the one before. The page's script reads them back.
std::string heat_code(double value);

// {"step": [..], "tokens": [..], "seconds": [..], "layers": ["h.0", ..., "lm_head"],
//  "kinds": {"fc/act": {"amax": ["codes of a layer", ..], "saturated": [..], "flushed": [..]}}}
// A layer of which something was flushed that says nothing of its scale (`gelu_tail`) has "telling_flushed" beside it.
// A column is the worst (largest) of the records in it; all maps together have at most `most_cells` cells.
nlohmann::json heat_map_json(const TensorRecords& records, size_t most_cells);

} // namespace gpt2
