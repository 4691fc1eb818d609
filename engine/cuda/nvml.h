// Utilisation, memory, clocks, power, temperature and throttling of a GPU through NVML, looked up at run time:
// wheel-based toolkits have no nvml.h, and containers may have no NVML at all. Without it, metrics() is empty.
#pragma once

#include <string>
#include <vector>

#include "engine/model/model.h"

namespace gpt2 {

class Nvml {
 public:
  explicit Nvml(const std::string& pci_bus_id);
  ~Nvml();
  Nvml(const Nvml&) = delete;

  // gpu/utilization (share of the time in which a kernel ran), gpu/memory_gb (1e9 bytes in use, by all processes),
  // gpu/sm_clock_mhz, gpu/memory_clock_mhz, gpu/power_watts, gpu/temperature_c; gpu/throttled (0 or 1: thermal or
  // hardware slowdown, something to look after) and gpu/power_capped (0 or 1: at its power limit, as any fully loaded
  // GPU is).
  std::vector<DeviceMetric> metrics() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

} // namespace gpt2
