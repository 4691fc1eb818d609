// Utilisation, memory, clocks, power, temperature and throttling of a GPU through NVML, looked up at run time:
// wheel-based toolkits have no nvml.h, and containers may have no NVML at all. Without it, metrics() is empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/model.h"

namespace gpt2 {

// What a doctor looks at; what NVML does not tell is absent.
struct GpuCondition {
  std::optional<std::string> driver;                     // "580.159.03"
  std::optional<double> sm_clock_mhz, most_sm_clock_mhz; // now, and what it can do
  std::optional<double> power_watts, power_limit_watts, usual_power_limit_watts;
  std::optional<double> temperature_c;
  std::optional<bool> ecc;                        // on
  std::optional<int64_t> uncorrected_errors;      // of its memory, since the driver was loaded
  std::optional<std::vector<std::string>> slowed; // why its clocks are held back; empty: they are not
};

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
  GpuCondition condition() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

} // namespace gpt2
