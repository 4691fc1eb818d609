#include "engine/base/formatted.h"
#include "tools/doctor/checks.h"
#ifdef GPT2_WITH_CUDA
#include "tools/doctor/gpu_health.h"
#endif

namespace gpt2 {
namespace {

constexpr double kLowShare = 0.5; // of the FLOPs: below it FP8 gains little

// 6 FLOPs per token and weight of the quantized GEMMs, over flops_per_token().
double share_of_flops(const ModelOptions& model) {
  const double C = model.config.channels;
  const double blocks = model.config.layers - static_cast<double>(model.fp8.bf16_layers.size());
  const double quantized = 72 * blocks * C * C + (model.fp8.lm_head ? 6.0 * model.config.vocab * C : 0);
  return quantized / flops_per_token(model.config, model.seq_len);
}

Finding share_finding(double flops, const std::string& time) {
  const std::string what = formatted("FP8 GEMMs are %.0f%% of the FLOPs", 100 * flops) + time;
  if (flops >= kLowShare) return {"share of FP8", Level::ok, what};
  return {"share of FP8", Level::warn, what,
          "FP8 gains little here: remove --no-fp8_lm_head and --fp8_bf16_layers, or train in BF16"};
}

} // namespace

double flops_per_token(const GPT2Config& config, int seq_len) {
  const double multiplied = static_cast<double>(parameter_count(config)) - 1.0 * config.seq_len * config.channels;
  return 6.0 * multiplied + 12.0 * config.layers * config.channels * seq_len;
}

#ifdef GPT2_WITH_CUDA

bool gpu_has_fp8(const PlannedRun& run) {
  const int device = backend_options(run.settings.options).cuda.device;
  return probe_cuda_device(device).compute_capability >= kFp8ComputeCapability && fp8_refusal(device).empty();
}

Finding fp8_share(const PlannedRun& run, Model& model) {
  if (!run.gpu) return share_finding(share_of_flops(run.plan.model), "");
  const HostBatch batch = read_sequences(*run.data.train, 0, run.plan.batch.batch_size, run.plan.batch.batch_size);
  const Fp8Share measured = measure_fp8_share(model, batch.view());
  return share_finding(measured.flops, formatted(" and %.0f%% of the time of a micro-step", 100 * measured.time));
}

#else

bool gpu_has_fp8(const PlannedRun&) { return false; }

Finding fp8_share(const PlannedRun& run, Model&) { return share_finding(share_of_flops(run.plan.model), ""); }

#endif

} // namespace gpt2
