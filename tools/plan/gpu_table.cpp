#include "tools/plan/gpu_table.h"

#include <algorithm>
#include <cctype>

#include "engine/backend/roofline.h"
#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/nearest_name.h"

namespace gpt2 {
namespace {

// NVIDIA's data sheets and architecture white papers, 2026-11. GiB is the total that the driver reports, which is less
// than the name of the card says: firmware, page tables and ECC take a part. Drivers differ by about 0.1 GiB, ECC in
// GDDR6 takes 3. Each figure is the lowest known one: a run that fits in the plan fits on the card.
constexpr KnownGpu kKnown[] = {
    // key, name, GiB, compute capability, SMs, TB/s, BF16, FP8
    {"rtx3090", "NVIDIA GeForce RTX 3090", 23.6, 86, 82, 0.936, 71, 0},
    {"rtx4060", "NVIDIA GeForce RTX 4060", 7.6, 89, 24, 0.272, 30.2, 60.5},
    {"rtx4070", "NVIDIA GeForce RTX 4070", 11.5, 89, 46, 0.504, 58.3, 116.6},
    {"rtx4080", "NVIDIA GeForce RTX 4080", 15.5, 89, 76, 0.717, 97.5, 194.9},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 23.5, 89, 128, 1.008, 165.2, 330.3},
    {"rtx5070", "NVIDIA GeForce RTX 5070", 11.4, 120, 48, 0.672, 61.7, 123.5},
    {"rtx5080", "NVIDIA GeForce RTX 5080", 15.4, 120, 84, 0.960, 112.6, 225.1},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 31.3, 120, 170, 1.792, 209.5, 419},
    {"a6000", "NVIDIA RTX A6000", 44.4, 86, 84, 0.768, 154.8, 0},
    {"rtx6000-ada", "NVIDIA RTX 6000 Ada", 44.4, 89, 142, 0.960, 364.2, 728.5},
    {"rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell", 94.9, 120, 188, 1.792, 503.8, 1007.6},
    {"a10", "NVIDIA A10", 21.9, 86, 72, 0.600, 125, 0},
    {"a100-40", "NVIDIA A100 40GB", 39.3, 80, 108, 1.555, 312, 0},
    {"a100-80", "NVIDIA A100 80GB", 79.1, 80, 108, 2.039, 312, 0},
    {"l4", "NVIDIA L4", 21.9, 89, 58, 0.300, 121, 242},
    {"l40s", "NVIDIA L40S", 44.3, 89, 142, 0.864, 362, 733},
    {"h100", "NVIDIA H100 SXM", 79.1, 90, 132, 3.35, 989, 1979},
    {"h100-pcie", "NVIDIA H100 PCIe", 79.1, 90, 114, 2.0, 756, 1513},
    {"h100-nvl", "NVIDIA H100 NVL", 93.0, 90, 132, 3.9, 835, 1671},
    {"h20", "NVIDIA H20", 94.9, 90, 78, 4.0, 148, 296},
    {"h200", "NVIDIA H200", 139.8, 90, 132, 4.8, 989, 1979},
    {"gh200", "NVIDIA GH200 96GB", 94.4, 90, 132, 4.0, 989, 1979},
    {"b200", "NVIDIA B200", 178, 100, 148, 8.0, 2250, 4500},
};
constexpr double kContextGib = 1; // of an idle GPU: driver and CUDA's context. H200: driver 580.159, 2026-11

// "NVIDIA GeForce RTX 4090" and "4090" are "4090".
std::string normalized(const std::string& name) {
  std::string out;
  for (const unsigned char c : name)
    if (std::isalnum(c)) out += static_cast<char>(std::tolower(c));
  for (const std::string vendor : {"nvidia", "geforce", "rtx", "sxm", "tesla", "blackwell"})
    if (const size_t at = out.find(vendor); at != std::string::npos) out.erase(at, vendor.size());
  for (const std::string unit : {"gb", "gib"})
    if (out.ends_with(unit)) out.erase(out.size() - unit.size());
  return out == "a100" ? "a10080" : out;
}

} // namespace

const KnownGpu& find_known_gpu(const std::string& name) {
  const std::string asked = normalized(name);
  std::vector<std::string> keys;
  for (const KnownGpu& gpu : kKnown) {
    if (normalized(gpu.key) == asked || normalized(gpu.name) == asked) return gpu;
    keys.emplace_back(gpu.key);
  }
  const std::string near = did_you_mean(name, keys);
  throw Error(ExitCode::usage, "--for " + name + ": unknown GPU",
              near + (near.empty() ? "" : " ") + "known: " + listed(keys));
}

CudaDeviceInfo device_of(const KnownGpu& gpu) {
  return {.usable = true,
          .why_not = "",
          .name = gpu.name,
          .compute_capability = gpu.compute_capability,
          .free_bytes = static_cast<int64_t>((gpu.gib - kContextGib) * (1 << 30)),
          .uuid = ""};
}

std::string figures_of(const KnownGpu& gpu) {
  return formatted("%d SMs, %.3g TB/s, %g TFLOP/s in BF16", gpu.sms, gpu.bandwidth, gpu.bf16) +
         (gpu.fp8 > 0 ? formatted(", %g in FP8", gpu.fp8) : "");
}

double math_rate(const KnownGpu& gpu, Precision precision) {
  const KnownGpu& measured = find_known_gpu("h200");
  return precision == Precision::fp8 ? gpu.fp8 / measured.fp8 : gpu.bf16 / measured.bf16;
}

double estimated_speed(const KnownGpu& gpu, const ModelOptions& model) {
  const KnownGpu& measured = find_known_gpu("h200");
  const double reached = gpu_expected_speed(device_of(measured), model).value() / h200_roofline(model);
  const TokenSeconds token = h200_token_seconds(model);
  return reached / (token.math / math_rate(gpu, model.precision) + token.memory * measured.bandwidth / gpu.bandwidth);
}

std::vector<MemoryLine> estimated_memory(const ModelOptions& model, Recompute recompute, int ranks) {
  // Bytes per parameter: FP32 master, BF16 and other copies, FP32 gradient; moments are sharded. The measurements of
  // README.md, 124M to 1558M, differ by 3% at most.
  constexpr double kParameterBytes = 12, kMomentBytes = 8, kWorkspaceBytes = 1.4e9;
  const double stored = recompute == Recompute::block       ? 2
                        : model.precision == Precision::fp8 ? 20.3
                        : recompute == Recompute::gelu      ? 24
                                                            : 32; // per layer, channel and token: docs/architecture.md
  const auto parameters = static_cast<double>(parameter_count(model.config));
  const double tokens = static_cast<double>(model.batch_size) * model.seq_len;
  const auto line = [](const char* purpose, double bytes) {
    return MemoryLine{.purpose = purpose, .bytes = static_cast<int64_t>(bytes)};
  };
  return {line("parameters and gradients (estimate)", kParameterBytes * parameters),
          line("moments", kMomentBytes * parameters / ranks),
          line("activations", stored * model.config.layers * model.config.channels * tokens),
          line("workspace", kWorkspaceBytes)};
}

} // namespace gpt2
