// The backend of a dry run (--plan, bin/doctor).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/backend/backend.h"

namespace gpt2 {

// open_backend() for a dry run: allocates no device memory, times nothing, writes nothing, makes no model. If a GPU is
// required and none is usable, it assumes an H200.
struct DryRunBackend {
  DeviceChoice device;
  std::unique_ptr<Backend> backend;
  std::string name;                         // "NVIDIA H200", "CPU"
  bool assumed = false;                     // this machine has no such GPU
  std::optional<int64_t> memory_bytes = {}; // free on the GPU
};
DryRunBackend open_dry_run_backend(const BackendOptions& options);

} // namespace gpt2
