// The interface between programs and hardware: makes models on the CPU or the GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/gpt2_cuda.h"
#include "engine/model/model.h"
#include "engine/ranks/communicator.h"

namespace gpt2 {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual bool is_gpu() const = 0;
  // Makes the model of this rank. Collective over `group`, which must outlive the model.
  virtual std::unique_ptr<Model> make_model(const ModelOptions& options, RankGroup& group) = 0;
  std::unique_ptr<Model> make_model(const ModelOptions& options); // a single process

  virtual std::string versions() const = 0; // device and libraries; all ranks must have the same

  // The micro-batch for --batch_size auto: a divisor of `target`, at most `max_batch_size` (0: no bound).
  virtual int choose_batch_size(const ModelOptions& options, int target, int max_batch_size) = 0;

  // Bytes of one rank by purpose, for a run of `ranks` ranks; empty where this build cannot count them.
  virtual std::vector<MemoryLine> memory(const ModelOptions&, int /*ranks*/) const { return {}; }

  // Peak tokens per second of one rank (engine/backend/roofline.h), where known.
  virtual std::optional<double> roofline(const ModelOptions&) const { return std::nullopt; }
  // Tokens per second that training reaches on one rank, where measured.
  virtual std::optional<double> expected_speed(const ModelOptions&) const { return std::nullopt; }
};

std::unique_ptr<Backend> make_cpu_backend(int threads, const SharingOptions& sharing = {}); // 0: all cores
std::unique_ptr<Backend> make_cuda_backend(const CudaModelOptions& options);                // requires a usable GPU

enum class DeviceKind { automatic, cuda, cpu };
enum class PrecisionChoice { automatic, fp8, bf16, fp32 };

struct BackendOptions {
  DeviceKind device = DeviceKind::automatic;
  PrecisionChoice precision = PrecisionChoice::automatic;
  bool mxfp8 = false; // requested: kMxfp8Sentence is a note
  int threads = 0;    // CPU engine; 0: all cores
  CudaModelOptions cuda;
  bool self_check = false; // a GPU that the project never ran on is checked first
};

// The result of looking for a GPU.
struct GpuReport {
  bool usable = false;
  std::string why_not = "this build has no CUDA engine";
  std::string name;
  int compute_capability = 0;  // 90 for Hopper
  std::string fp8_refusal;     // why FP8 GEMMs fail on a GPU that should support them; empty: they work
  std::string self_check = {}; // a line about the self-check (engine/cuda/self_check.h); empty: none was needed
};
int gpu_count(); // visible to this process
// Runs one FP8 GEMM if FP8 is requested, and the self-check on a GPU that the project never ran on. Throws
// Error(device) if the self-check finds a difference outside FP8.
GpuReport find_gpu(const BackendOptions& options);

constexpr int kFp8ComputeCapability = 89; // Ada, the first with E4M3 and E5M2 tensor cores

// MXFP8: one scale for 32 values, in hardware from Blackwell on. Neither engine implements it. One sentence for the
// note, the help and the documents.
constexpr const char* kMxfp8Sentence = "--fp8_scenario mxfp8 is not built on any GPU: --fp8_recipe applies";

struct DeviceChoice {
  bool gpu = false;
  Precision precision = Precision::fp32;
  std::vector<std::string> notes; // one line for each fallback
};

// Matches the request with the hardware. Throws Error(device) if a GPU is required and none is usable.
DeviceChoice choose_device(const BackendOptions& options, const GpuReport& gpu);

struct OpenBackend {
  DeviceChoice device;
  std::unique_ptr<Backend> backend;
};
OpenBackend open_backend(const BackendOptions& options);

std::string cuda_version(); // "CUDA 13.0", or "CPU only" for a build without it

} // namespace gpt2
