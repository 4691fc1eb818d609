// The self-check of an untested GPU, on this one: it passes, and finds one wrong number planted in any kernel.
#include "engine/cuda/self_check.h"

#include <fstream>
#include <sstream>

#include "engine/cuda/gpt2_cuda.h"
#include "tests/expect_error.h"
#include "tests/gpu/gpu_test.h"
#include "tests/temporary_folder.h"

namespace gpt2 {
namespace {

constexpr const char* kVariable = "GPT2_SELF_CHECK";

CudaModelOptions with(KernelChoice kernels) {
  CudaModelOptions options;
  options.kernels = kernels;
  return options;
}

} // namespace

TEST_CASE("every kind of kernel agrees with the CPU reference, Hopper's and the general ones") {
  for (const KernelChoice kernels : {KernelChoice::automatic, KernelChoice::general}) {
    const SelfCheck found = run_self_check(with(kernels));
    CHECK(found.kernels >= 15);
    for (const std::string& kernel : found.different) FAIL_CHECK(kernel);
    for (const std::string& kernel : found.different_fp8_gemms) FAIL_CHECK(kernel);
  }
}

TEST_CASE("a GPU that the project ran on is not checked unless a test asks") {
  CHECK_FALSE(needs_self_check(90));
  for (const int capability : {80, 89, 100, 103, 120, 121}) CHECK(needs_self_check(capability));
  const ScopedVariable requested(kVariable, "1");
  CHECK(needs_self_check(90));
}

TEST_CASE("a wrong number in a kernel is exit 6 with its name; in FP8's GEMMs it refuses FP8 alone") {
  for (const char* kernel : {"gemm_forward", "layernorm_backward", "attention_backward", "adamw"}) {
    const ScopedVariable requested(kVariable, kernel);
    const Error error = expect_error([] { self_check({}); });
    CHECK(error.code() == ExitCode::device);
    CHECK(mentions(error, kernel));
  }
  if (compute_capability_of(0) < 89) return;
  const ScopedVariable requested(kVariable, "gemm_backward_weight_fp8_long");
  const SelfCheckVerdict verdict = self_check({});
  CHECK(verdict.fp8_refusal.find("gemm_backward_weight_fp8_long") != std::string::npos);
  CHECK(verdict.note.find("all but FP8's GEMMs agree") != std::string::npos);
}

TEST_CASE("the result is kept with the tuned plans, so the second start neither checks nor speaks") {
  const TemporaryFolder folder;
  CudaModelOptions options;
  options.plan_cache = folder / "plans.txt";
  const ScopedVariable requested(kVariable, "1");
  CHECK(self_check(options).note.find("all agree") != std::string::npos);
  const std::string kept = (std::stringstream() << std::ifstream(options.plan_cache).rdbuf()).str();
  CHECK(kept.find("self_check") != std::string::npos);
  CHECK(self_check(options).note.empty());
}

} // namespace gpt2
