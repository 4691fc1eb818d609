// The backend of a dry run (--plan, bin/doctor).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/backend/backend.h"

namespace gpt2 {

// open_backend() for a dry run: allocates no device memory, times nothing, writes nothing, makes no model. `gpu`: a
// name of tools/plan/gpu_table.h to assume, "": this machine's. If a GPU is required and none is usable, it assumes an
// H200.
struct DryRunBackend {
  DeviceChoice device;
  std::unique_ptr<Backend> backend;
  std::string name;                         // "NVIDIA H200", "CPU"
  bool assumed = false;                     // this machine has no such GPU
  std::optional<int64_t> memory_bytes = {}; // free on the GPU
  std::string speed_from = {};              // source of expected_speed()
  double math_rate = 1;                     // of the GPU's BF16, an H200's: 1
  std::string figures = {};                 // of an assumed GPU: what the estimate uses
};
DryRunBackend open_dry_run_backend(const BackendOptions& options, const std::string& gpu = "");

} // namespace gpt2
