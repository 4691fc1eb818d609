// The hardware a run uses, as far as the loop must know it. The CPU's stands here; the program hands in the GPU's, so
// that nothing on this floor needs CUDA.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/train/options.h"

namespace gpt2 {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual bool is_gpu() const = 0;
  virtual std::unique_ptr<Model> make_model(const ModelOptions& options) = 0;

  // The micro-batch for --batch_size auto: a divisor of `target`, at most `max_batch_size` (0: no bound).
  virtual int choose_batch_size(const ModelOptions& options, int target, int max_batch_size) = 0;

  // Tokens per second that this hardware cannot exceed, where it is known.
  virtual std::optional<double> light_speed(const ModelOptions&) const { return std::nullopt; }
};

std::unique_ptr<Backend> make_cpu_backend(int threads); // 0: all cores

// What the program found when it looked for a GPU.
struct GpuReport {
  bool usable = false;
  std::string why_not = "this build has no CUDA engine";
  std::string name;
  int compute_capability = 0; // 90 for Hopper
  std::string fp8_refusal;    // why FP8 products fail although the GPU should have them; empty: they do not
};

constexpr int kFp8ComputeCapability = 90; // Hopper: the first whose E4M3 and E5M2 tensor cores we use

struct DeviceChoice {
  bool gpu = false;
  Precision precision = Precision::fp32;
  std::vector<std::string> notes; // one line for each fallback taken
};

// --device and --precision against what is there. Throws Error(device) if --device cuda cannot be had.
DeviceChoice choose_device(const Options& options, const GpuReport& gpu);

} // namespace gpt2
