#include "engine/cuda/nvml.h"

#include <dlfcn.h>

namespace gpt2 {

namespace {

// From NVML's public interface; numbers are part of its ABI.
constexpr int kSuccess = 0;
constexpr unsigned kClockSm = 1, kClockMemory = 2;
constexpr unsigned kTemperatureGpu = 0;
constexpr unsigned kUncorrected = 1, kSinceDriver = 0; // memory errors
constexpr unsigned long long kPowerCap = 0x4, kHardwareSlowdown = 0x8, kThermalSoftware = 0x20, kThermalHardware = 0x40,
                             kPowerBrake = 0x80;

struct Utilization { // nvmlUtilization_t: percent of the last sample period
  unsigned gpu, memory;
};
struct Memory { // nvmlMemory_t: bytes
  unsigned long long total, free, used;
};

template <class... Arguments>
bool call(void* library, const char* name, Arguments... arguments) {
  using Function = int (*)(Arguments...);
  auto function = reinterpret_cast<Function>(dlsym(library, name));
  return function && function(arguments...) == kSuccess;
}

} // namespace

Nvml::Nvml(const std::string& pci_bus_id) : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (!library_) return;
  if (!call(library_, "nvmlInit_v2") ||
      !call(library_, "nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.c_str(), &device_)) {
    device_ = nullptr;
  }
}

Nvml::~Nvml() {
  if (!library_) return;
  call(library_, "nvmlShutdown");
  dlclose(library_);
}

std::vector<DeviceMetric> Nvml::metrics() const {
  std::vector<DeviceMetric> metrics;
  if (!device_) return metrics;
  Utilization utilization{};
  if (call(library_, "nvmlDeviceGetUtilizationRates", device_, &utilization))
    metrics.push_back({"gpu/utilization", utilization.gpu / 100.0});
  Memory memory{};
  if (call(library_, "nvmlDeviceGetMemoryInfo", device_, &memory))
    metrics.push_back({"gpu/memory_gb", static_cast<double>(memory.used) / 1e9});
  unsigned value = 0;
  if (call(library_, "nvmlDeviceGetClockInfo", device_, kClockSm, &value))
    metrics.push_back({"gpu/sm_clock_mhz", static_cast<double>(value)});
  if (call(library_, "nvmlDeviceGetClockInfo", device_, kClockMemory, &value))
    metrics.push_back({"gpu/memory_clock_mhz", static_cast<double>(value)});
  if (call(library_, "nvmlDeviceGetPowerUsage", device_, &value))
    metrics.push_back({"gpu/power_watts", value / 1000.0});
  if (call(library_, "nvmlDeviceGetTemperature", device_, kTemperatureGpu, &value))
    metrics.push_back({"gpu/temperature_c", static_cast<double>(value)});
  unsigned long long reasons = 0;
  if (call(library_, "nvmlDeviceGetCurrentClocksEventReasons", device_, &reasons) ||
      call(library_, "nvmlDeviceGetCurrentClocksThrottleReasons", device_, &reasons)) {
    const auto slow = kHardwareSlowdown | kThermalSoftware | kThermalHardware | kPowerBrake;
    metrics.push_back({"gpu/throttled", (reasons & slow) ? 1.0 : 0.0});
    metrics.push_back({"gpu/power_capped", (reasons & kPowerCap) ? 1.0 : 0.0});
  }
  return metrics;
}

GpuCondition Nvml::condition() const {
  GpuCondition now;
  if (!device_) return now;
  char driver[96] = "";
  if (call(library_, "nvmlSystemGetDriverVersion", driver, static_cast<unsigned>(sizeof driver))) now.driver = driver;
  unsigned value = 0, pending = 0;
  if (call(library_, "nvmlDeviceGetClockInfo", device_, kClockSm, &value)) now.sm_clock_mhz = value;
  if (call(library_, "nvmlDeviceGetMaxClockInfo", device_, kClockSm, &value)) now.max_sm_clock_mhz = value;
  if (call(library_, "nvmlDeviceGetPowerUsage", device_, &value)) now.power_watts = value / 1000.0;
  if (call(library_, "nvmlDeviceGetEnforcedPowerLimit", device_, &value)) now.power_limit_watts = value / 1000.0;
  if (call(library_, "nvmlDeviceGetPowerManagementDefaultLimit", device_, &value))
    now.default_power_limit_watts = value / 1000.0;
  if (call(library_, "nvmlDeviceGetTemperature", device_, kTemperatureGpu, &value)) now.temperature_c = value;
  if (call(library_, "nvmlDeviceGetEccMode", device_, &value, &pending)) now.ecc = value != 0;
  unsigned long long count = 0;
  if (call(library_, "nvmlDeviceGetTotalEccErrors", device_, kUncorrected, kSinceDriver, &count))
    now.uncorrected_ecc_errors = static_cast<int64_t>(count);
  unsigned long long reasons = 0;
  if (call(library_, "nvmlDeviceGetCurrentClocksEventReasons", device_, &reasons) ||
      call(library_, "nvmlDeviceGetCurrentClocksThrottleReasons", device_, &reasons)) {
    now.throttle_reasons.emplace();
    if (reasons & kThermalSoftware) now.throttle_reasons->push_back("software thermal slowdown");
    if (reasons & kThermalHardware) now.throttle_reasons->push_back("hardware thermal slowdown");
    if (reasons & kPowerBrake) now.throttle_reasons->push_back("power brake from the power supply");
    if ((reasons & kHardwareSlowdown) && now.throttle_reasons->empty())
      now.throttle_reasons->push_back("hardware slowdown");
  }
  return now;
}

} // namespace gpt2
