// Utilization, memory, clocks, power, temperature and throttling of a GPU through NVML, opened with dlopen: pip
// toolkits have no nvml.h, and containers may have no NVML. Without NVML, metrics() is empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/model.h"

namespace gpt2 {

// For bin/doctor; nullopt: NVML does not report it.
struct GpuCondition {
  std::optional<std::string> driver;                    // "580.159.03"
  std::optional<double> sm_clock_mhz, max_sm_clock_mhz; // current, maximum
  std::optional<double> power_watts, power_limit_watts, default_power_limit_watts;
  std::optional<double> temperature_c;
  std::optional<bool> ecc;                                  // enabled
  std::optional<int64_t> uncorrected_ecc_errors;            // of device memory, since the driver was loaded
  std::optional<std::vector<std::string>> throttle_reasons; // empty: not throttled
};

class Nvml {
 public:
  explicit Nvml(const std::string& pci_bus_id);
  ~Nvml();
  Nvml(const Nvml&) = delete;

  // gpu/utilization (share of the time in which a kernel ran), gpu/memory_gb (1e9 bytes in use, by all processes),
  // gpu/sm_clock_mhz, gpu/memory_clock_mhz, gpu/power_watts, gpu/temperature_c; gpu/throttled (0 or 1: thermal or
  // hardware slowdown, a problem) and gpu/power_capped (0 or 1: at the power limit, normal under full load).
  std::vector<DeviceMetric> metrics() const;
  GpuCondition condition() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

} // namespace gpt2
