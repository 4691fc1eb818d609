// The hardware a run uses, as far as the loop and the tools must know it: what makes models, CPU or GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/gpt2_cuda.h"
#include "engine/dist/communicator.h"
#include "engine/model/model.h"

namespace gpt2 {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual bool is_gpu() const = 0;
  // One of the ranks of `group`, which must outlive it; every rank makes its own at the same time.
  virtual std::unique_ptr<Model> make_model(const ModelOptions& options, RankGroup& group) = 0;
  std::unique_ptr<Model> make_model(const ModelOptions& options); // of one process

  virtual std::string versions() const = 0; // of the device and its libraries: ranks compare them

  // The micro-batch for --batch_size auto: a divisor of `target`, at most `max_batch_size` (0: no bound).
  virtual int choose_batch_size(const ModelOptions& options, int target, int max_batch_size) = 0;

  // What each of so many ranks holds of such a model, by purpose; empty where this build cannot count it.
  virtual std::vector<MemoryLine> memory(const ModelOptions&, int /*ranks*/) const { return {}; }

  // Tokens per second that this hardware cannot exceed, where it is known.
  virtual std::optional<double> light_speed(const ModelOptions&) const { return std::nullopt; }
  // Those that one rank has been seen to reach, where somebody has measured.
  virtual std::optional<double> usual_speed(const ModelOptions&) const { return std::nullopt; }
};

std::unique_ptr<Backend> make_cpu_backend(int threads, const SharingOptions& sharing = {}); // 0: all cores
std::unique_ptr<Backend> make_cuda_backend(const CudaModelOptions& options); // only where a GPU was found

enum class DeviceKind { automatic, cuda, cpu };
enum class PrecisionChoice { automatic, fp8, bf16, fp32 };

struct BackendOptions {
  DeviceKind device = DeviceKind::automatic;
  PrecisionChoice precision = PrecisionChoice::automatic;
  bool mxfp8 = false; // asked for; no engine here has it, and a note says so
  int threads = 0;    // of the CPU engine; 0: all cores
  CudaModelOptions cuda;
};

// What was found when looking for a GPU.
struct GpuReport {
  bool usable = false;
  std::string why_not = "this build has no CUDA engine";
  std::string name;
  int compute_capability = 0; // 90 for Hopper
  std::string fp8_refusal;    // why FP8 products fail although the GPU should have them; empty: they do not
};
int gpu_count();                                   // that this process may use
GpuReport find_gpu(const BackendOptions& options); // multiplies once in FP8 if that is what is asked for

constexpr int kFp8ComputeCapability = 90; // Hopper: the first whose E4M3 and E5M2 tensor cores we use

struct DeviceChoice {
  bool gpu = false;
  Precision precision = Precision::fp32;
  std::vector<std::string> notes; // one line for each fallback taken
};

// What is asked for against what is there. Throws Error(device) if a GPU is asked for and cannot be had.
DeviceChoice choose_device(const BackendOptions& options, const GpuReport& gpu);

struct OpenBackend {
  DeviceChoice device;
  std::unique_ptr<Backend> backend;
};
OpenBackend open_backend(const BackendOptions& options);

// As open_backend, to plan a run with: takes no device memory, times nothing and writes nothing, and makes no model.
// Where a GPU is asked for and there is none, one that we know is assumed.
struct PlannedBackend {
  DeviceChoice device;
  std::unique_ptr<Backend> backend;
  std::string name;                         // "NVIDIA H200", "CPU"
  bool assumed = false;                     // it is not in this machine
  std::optional<int64_t> memory_bytes = {}; // free on the GPU
};
PlannedBackend plan_backend(const BackendOptions& options);

std::string cuda_version(); // "CUDA 13.0", or "CPU only" for a build without it

} // namespace gpt2
