// Compares each kind of kernel with the CPU reference on small shapes, in a second or two: for a GPU that the project
// never ran on.
//
// GPT2_SELF_CHECK in the environment, for tests: 1 requests the check on every GPU; the name of a kernel also plants
// one wrong number in its result.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/cuda_options.h"

namespace gpt2 {

constexpr int kCheckedComputeCapability = 90; // the suites of tests/gpu ran there

bool needs_self_check(int compute_capability);

struct SelfCheck {
  int kernels = 0;                    // compared
  std::vector<std::string> different; // "layernorm_forward (0.3 off, at most 0.03)", without FP8's GEMMs
  std::vector<std::string> different_fp8_gemms;
};
SelfCheck run_self_check(const CudaModelOptions& options);

struct SelfCheckVerdict {
  std::string note;        // one line for the user
  std::string fp8_refusal; // empty: FP8's GEMMs agree
};
// From the tuning cache, or by a check whose result is stored there. Throws Error(device) that names the kernels other
// than FP8's GEMMs that differ.
SelfCheckVerdict self_check(const CudaModelOptions& options);

} // namespace gpt2
