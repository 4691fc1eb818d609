#include "engine/backend/roofline.h"
#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "tools/doctor/checks.h"
#ifdef GPT2_WITH_CUDA
#include "engine/cuda/self_check.h"
#include "tools/doctor/gpu_health.h"
#endif

namespace gpt2 {
namespace {

void report_no_gpu(const Options& options, const std::string& why, const Report& report) {
  if (options.device == DeviceKind::cuda)
    return report(
        {"GPU", Level::fail, "--device cuda: " + why, "use --device cpu, or --device auto", ExitCode::device});
  report({"GPU", Level::warn, why + ": a run trains on the CPU",
          "use a machine with an NVIDIA GPU of compute capability 8.9 for more than a first try"});
}

#ifdef GPT2_WITH_CUDA

// GEMMs of 8192^3 on one H200 SXM with CUDA 13.0, cuBLASLt 13.1, 2026-11-16; machines differ by a few percent.
constexpr double kH200Bf16Tflops = 736, kH200Fp8Tflops = 1520;
constexpr double kSlow = 0.85;

std::string condition_text(const GpuCondition& now) {
  std::string out;
  if (now.sm_clock_mhz && now.max_sm_clock_mhz)
    out += formatted(", %.0f of %.0f MHz", *now.sm_clock_mhz, *now.max_sm_clock_mhz);
  if (now.power_watts && now.power_limit_watts)
    out += formatted(", %.0f of %.0f W", *now.power_watts, *now.power_limit_watts);
  if (now.temperature_c) out += formatted(", %.0f C", *now.temperature_c);
  if (now.ecc) out += *now.ecc ? ", ECC on" : ", ECC off";
  return out.empty() ? ", clocks and power unknown (no NVML)" : out;
}

// The problem and the advice; both empty: none.
std::pair<std::string, std::string> trouble_of(const GpuCondition& now) {
  if (now.uncorrected_ecc_errors.value_or(0) > 0)
    return {"; " + counted(*now.uncorrected_ecc_errors, "uncorrectable ECC error"),
            "reset the GPU (nvidia-smi --gpu-reset); replace it if the errors return"};
  if (now.throttle_reasons && !now.throttle_reasons->empty())
    return {"; clocks throttled: " + listed(*now.throttle_reasons),
            "check cooling and power (nvidia-smi -q -d PERFORMANCE)"};
  if (now.power_limit_watts && now.default_power_limit_watts &&
      *now.power_limit_watts < 0.98 * *now.default_power_limit_watts)
    return {formatted("; default power limit %.0f W", *now.default_power_limit_watts),
            formatted("raise the limit: nvidia-smi -pl %.0f", *now.default_power_limit_watts)};
  if (now.ecc && !*now.ecc) return {"", "turn on ECC (nvidia-smi -e 1): without it bit flips go unnoticed"};
  return {"", ""};
}

void check_device(int device, const Report& report) {
  const CudaDeviceInfo info = probe_cuda_device(device);
  const std::string name = "GPU " + std::to_string(device);
  if (!info.usable)
    return report({name, Level::fail, info.why_not, "choose another GPU (CUDA_VISIBLE_DEVICES)", ExitCode::device});
  const GpuCondition now = gpu_condition(device);
  const auto [trouble, advice] = trouble_of(now);
  report({name, advice.empty() ? Level::ok : Level::warn,
          info.name +
              formatted(", compute capability %d.%d, ", info.compute_capability / 10, info.compute_capability % 10) +
              format_bytes(static_cast<double>(info.free_bytes)) + " free" + condition_text(now) + trouble,
          advice});
  if (info.compute_capability != kCheckedComputeCapability)
    report({name, Level::warn, "this program was never tested on this architecture",
            "compare a few hundred steps with --precision bf16 before a long run"});
}

void check_libraries(int device, const Report& report) {
  const GpuCondition now = gpu_condition(device);
  report({"driver", Level::ok, now.driver ? *now.driver : "version unknown (no NVML)"});
  const std::string cudnn = cudnn_version(device);
  const bool missed =
      cudnn.empty() && probe_cuda_device(device).compute_capability != 90; // Hopper has our attention kernels
  report({"libraries", missed ? Level::warn : Level::ok,
          cuda_version() + ", " + cuda_library_versions() + ", " + (cudnn.empty() ? "no cuDNN" : cudnn),
          missed ? "install cuDNN (tools/install_deps.sh): our attention kernels are slower on this GPU" : ""});
}

void check_fp8(int device, const Report& report) {
  const CudaDeviceInfo info = probe_cuda_device(device);
  if (info.compute_capability < kFp8ComputeCapability)
    return report({"FP8 GEMMs", Level::warn, info.name + ": FP8 needs compute capability 8.9", "train in BF16"});
  const double error = fp8_gemm_error(device);
  const std::string what = formatted("forward and both gradients: relative error %.1e", error);
  if (error < kFp8GemmTolerance) return report({"FP8 GEMMs", Level::ok, what});
  report({"FP8 GEMMs", Level::fail, what + formatted(", above the tolerance %.0e", kFp8GemmTolerance),
          "train with --precision bf16, and check the GPU and its driver", ExitCode::numerics});
}

void check_kernels(const CudaModelOptions& options, const Report& report) {
  const SelfCheck found = run_self_check(options);
  std::vector<std::string> different = found.different;
  different.insert(different.end(), found.different_fp8_gemms.begin(), found.different_fp8_gemms.end());
  if (different.empty())
    return report({"kernels", Level::ok, std::to_string(found.kernels) + " agree with the CPU reference"});
  report({"kernels", Level::fail, "differ from the CPU reference: " + listed(different),
          found.different.empty() ? "train with --precision bf16, and report this" : "report this", ExitCode::device});
}

void check_rates(int device, const Report& report) {
  const std::string gpu = probe_cuda_device(device).name;
  const bool known = gpu.find("H200") != std::string::npos && gpu.find("GH200") == std::string::npos;
  const GpuRates rates = measure_gpu_rates(device);
  bool slow = false;
  const auto compared = [&](const char* what, double reached, double typical, const char* unit) {
    slow = slow || (known && reached < kSlow * typical);
    return formatted("%s %.0f", what, reached) + (known ? formatted(" of %.0f ", typical) : " ") + unit;
  };
  std::string what = compared("BF16 GEMM", rates.bf16_tflops, kH200Bf16Tflops, "TFLOP/s");
  if (rates.fp8_tflops > 0) what += ", " + compared("FP8 GEMM", rates.fp8_tflops, kH200Fp8Tflops, "TFLOP/s");
  what += ", " + compared("memcpy", rates.copy_gb_per_s, kH200CopyBytesPerSecond / 1e9, "GB/s") +
          (known ? " (typical H200)" : "");
  const auto [trouble, advice] = trouble_of(rates.under_load);
  what += "; under load" + condition_text(rates.under_load).substr(1) + trouble;
  if (!slow) return report({"GPU speed", advice.empty() ? Level::ok : Level::warn, what, advice});
  report({"GPU speed", Level::warn, what,
          advice.empty() ? "check for other processes (nvidia-smi), clocks and power limit" : advice});
}

void check_nccl(const Report& report) {
  const int gpus = cuda_device_count();
  const NcclProbe probe = probe_nccl();
  if (!probe.problem.empty())
    return report({"NCCL", gpus > 1 ? Level::fail : Level::warn, probe.problem,
                   "several GPUs need NCCL: install libnccl2 (or the wheel nvidia-nccl-cu13)",
                   ExitCode::communication});
  const std::string networks = probe.networks.empty() ? "" : "; between nodes: " + listed(probe.networks);
  if (!probe.bus_gb_per_s) return report({"NCCL", Level::ok, "works; bandwidth not measured with one GPU" + networks});
  report({"NCCL", Level::ok,
          formatted("%d GPUs, all-reduce at %.0f GB/s (bus)", gpus, *probe.bus_gb_per_s) + " over " +
              (probe.transports.empty() ? "an unknown transport" : listed(probe.transports)) + networks});
}

#endif

} // namespace

#ifdef GPT2_WITH_CUDA

void check_gpus(const Options& options, const Report& report) {
  if (options.device == DeviceKind::cpu) return;
  check(report, "GPU", [&] {
    const int device = CudaModelOptions{}.device;
    const CudaDeviceInfo info = probe_cuda_device(device);
    if (!info.usable) return report_no_gpu(options, info.why_not, report);
    check_libraries(device, report);
    for (int each = 0; each < cuda_device_count(); ++each)
      check(report, "GPU " + std::to_string(each), [&] { check_device(each, report); });
    check(report, "kernels", [&] { check_kernels(backend_options(options).cuda, report); });
    check(report, "FP8 GEMMs", [&] { check_fp8(device, report); });
    check(report, "GPU speed", [&] { check_rates(device, report); });
    check(report, "NCCL", [&] { check_nccl(report); });
  });
}

#else

void check_gpus(const Options& options, const Report& report) {
  if (options.device != DeviceKind::cpu) report_no_gpu(options, GpuReport{}.why_not, report);
}

#endif

} // namespace gpt2
