#include "engine/train/backend.h"

#include <omp.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/train/batch_plan.h"

namespace gpt2 {
namespace {

constexpr int kBlackwellComputeCapability = 100;

class CpuBackend : public Backend {
 public:
  bool is_gpu() const override { return false; }
  std::unique_ptr<Model> make_model(const ModelOptions& options) override { return make_cpu_model(options); }

  int choose_batch_size(const ModelOptions& options, int target, int max_batch_size) override {
    const int good = defaults_for(options.config).batch_size; // larger ones only cost memory
    return largest_divisor_at_most(target, max_batch_size > 0 ? std::min(good, max_batch_size) : good);
  }
};

Precision cpu_precision(const Options& options, std::vector<std::string>& notes) {
  if (options.precision == "fp8") return Precision::fp8;
  if (options.precision == "bf16") notes.push_back("the CPU engine has no BF16: training in FP32");
  return Precision::fp32;
}

Precision gpu_precision(const Options& options, const GpuReport& gpu, std::vector<std::string>& notes) {
  if (options.precision == "fp32") {
    throw Error(ExitCode::usage, "--precision fp32 is for the CPU engine; the GPU trains in bf16 or fp8",
                "use --precision bf16 (master weights are FP32), or --device cpu");
  }
  if (options.precision != "fp8") return Precision::bf16;
  if (gpu.compute_capability < kFp8ComputeCapability) {
    notes.push_back(gpu.name + " has compute capability " + std::to_string(gpu.compute_capability / 10) + "." +
                    std::to_string(gpu.compute_capability % 10) + ", FP8 needs 9.0: training in BF16");
    return Precision::bf16;
  }
  if (!gpu.fp8_refusal.empty()) {
    notes.push_back("FP8 products fail on " + gpu.name + " (" + gpu.fp8_refusal + "): training in BF16");
    return Precision::bf16;
  }
  return Precision::fp8;
}

// MXFP8 scales every 32 values in hardware that begins with Blackwell; neither engine here has it.
std::string scenario_note(const Options& options, const GpuReport& gpu) {
  const bool blackwell = gpu.compute_capability >= kBlackwellComputeCapability;
  return "--fp8_scenario mxfp8 " +
         (blackwell ? "has no kernels in this version for " + gpu.name : std::string("needs a Blackwell GPU")) +
         ": going on with the " + options.fp8_recipe + " recipe";
}

} // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads) {
  if (threads > 0) omp_set_num_threads(threads);
  return std::make_unique<CpuBackend>();
}

DeviceChoice choose_device(const Options& options, const GpuReport& gpu) {
  DeviceChoice choice;
  if (options.device == "cuda" && !gpu.usable) {
    throw Error(ExitCode::device, "--device cuda: " + gpu.why_not, "use --device cpu, or auto to take what is there");
  }
  choice.gpu = options.device != "cpu" && gpu.usable;
  if (options.device == "auto" && !gpu.usable) {
    choice.notes.push_back("no GPU (" + gpu.why_not + "): training on the CPU reference engine");
  }
  choice.precision = choice.gpu ? gpu_precision(options, gpu, choice.notes) : cpu_precision(options, choice.notes);
  if (choice.precision == Precision::fp8 && options.fp8_scenario == "mxfp8") {
    choice.notes.push_back(scenario_note(options, gpu));
  }
  return choice;
}

} // namespace gpt2
