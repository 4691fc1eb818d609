// One table of what the GPU engine reaches: tokens/s, ms per step, share of the roofline, MFU, memory, for the
// four sizes in BF16 and FP8; then the time of each operation. Usage: bench_gpt2 [--models a,b] [--precisions bf16,fp8]
// [--batch N] [--operations] [--step_tokens N] [--steps N] [--recompute none|gelu|block] [--attention auto|cudnn|own]
// [--kernels auto|general] [--no_graph] [--no_fuse_gelu] [--bf16_lm_head] [--optimizer adamw|muon] [--document_mask]
// [--plan_cache FILE]; or with --decode what a decoder writes instead. tokens/s is of the fastest step, median of the
// median step: a GPU that has run for ten seconds is hot and clocks lower, so only the median of many steps compares
// with a training run.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "engine/backend/roofline.h"
#include "engine/base/rng.h"
#include "engine/cuda/gpt2_cuda_model.h"
#include "engine/options/options.h" // the words of choices
#include "engine/system/program.h"
#include "kernels/cuda/profile.h"
#include "tools/doctor/checks.h"

namespace {

using namespace gpt2;

constexpr double kPeakBf16 = 989e12, kPeakFp8 = 1979e12; // dense, by the H200's data sheet

struct Settings {
  std::vector<std::string> models{"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"};
  std::vector<std::string> precisions{"bf16", "fp8"};
  int batch = 0; // 0: the best known of each model
  int64_t step_tokens = 524288;
  bool operations = false;
  bool decode = false;
  int steps = 2;
  bool fp8_lm_head = true;
  Optimizer optimizer = Optimizer::adamw;
  DocumentOptions documents;
  CudaModelOptions cuda;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

template <class Enum>
Enum word(const std::string& flag, const std::string& given) {
  const auto value = value_named<Enum>(given);
  if (!value) throw Error(ExitCode::usage, flag + " cannot be '" + given + "'");
  return *value;
}

Settings parse(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) throw Error(ExitCode::usage, flag + " needs a value");
      return argv[++i];
    };
    if (flag == "--models")
      s.models = split(value());
    else if (flag == "--precisions")
      s.precisions = split(value());
    else if (flag == "--batch")
      s.batch = std::stoi(value());
    else if (flag == "--step_tokens")
      s.step_tokens = std::stoll(value());
    else if (flag == "--steps")
      s.steps = std::stoi(value());
    else if (flag == "--plan_cache")
      s.cuda.plan_cache = value();
    else if (flag == "--recompute")
      s.cuda.recompute = word<Recompute>(flag, value());
    else if (flag == "--attention")
      s.cuda.attention = word<AttentionKind>(flag, value());
    else if (flag == "--kernels")
      s.cuda.kernels = word<KernelChoice>(flag, value());
    else if (flag == "--no_graph")
      s.cuda.cuda_graph = false;
    else if (flag == "--no_fuse_gelu")
      s.cuda.fuse_gelu = false;
    else if (flag == "--bf16_lm_head")
      s.fp8_lm_head = false;
    else if (flag == "--optimizer")
      s.optimizer = word<Optimizer>(flag, value());
    else if (flag == "--document_mask")
      s.documents.mask = true;
    else if (flag == "--operations")
      s.operations = true;
    else if (flag == "--decode")
      s.decode = true;
    else
      throw Error(ExitCode::usage, "unknown flag " + flag);
  }
  return s;
}

int usual_batch(const std::string& model) { return model == "gpt2-xl" ? 32 : 64; }

// Token frequencies fall off as in text, so that the embedding's gradient meets runs of equal tokens.
struct Tokens {
  std::vector<int32_t> inputs, targets;
  Tokens(int64_t count, int vocab) : inputs(count), targets(count) {
    const Rng rng(7);
    for (int64_t i = 0; i < count; ++i) {
      const double u = rng.uniform(i), v = rng.uniform(count + i);
      inputs[i] = static_cast<int32_t>(vocab * u * u * u);
      targets[i] = static_cast<int32_t>(vocab * v * v * v);
    }
  }

  // Document lengths as in FineWeb-Edu: lognormal, mean 1,030 tokens, sigma 1.1.
  void plant(int32_t separator) {
    constexpr double kMean = 1030, kSigma = 1.1;
    const double mu = std::log(kMean) - kSigma * kSigma / 2;
    const Rng rng(8);
    uint64_t document = 0;
    for (double at = 0; at < static_cast<double>(inputs.size());
         at += std::max(1.0, std::exp(mu + kSigma * rng.normal(document++))))
      inputs[static_cast<size_t>(at)] = separator;
  }
};

double run_step(Model& model, const Batch& batch, int count) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) model.micro_step(batch, i, count);
  UpdateSettings settings;
  settings.adamw.lr = settings.muon.lr = 1e-4f;
  model.update(settings);
  const StepResult result = model.step_result();
  if (result.verdict != Verdict::applied)
    std::printf("  step skipped: loss %f norm %f\n", result.loss, result.grad_norm);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What an operation would take at the rate of a copy or of the largest products of its precision, whichever is more,
// and the share of the step that would be saved if it did: the next target is the largest of those.
void print_operations(GPT2Cuda& model, const Batch& batch) {
  constexpr double kBf16Flops = 736e12, kFp8Flops = 1520e12; // 8192^3 by cuBLASLt, one H200, 2026-11-16
  Profile profile(model.backend().stream);
  model.backend().profile = &profile;
  run_step(model, batch, 1);
  model.backend().profile = nullptr;
  const auto operations = profile.results();
  double total = 0;
  for (const auto& operation : operations) total += operation.ms;
  std::printf("\n  %-28s %5s %8s %6s %6s %8s %7s %7s\n", "operation (one micro-step)", "calls", "ms", "GB/s", "TFLOP/s",
              "floor ms", "share", "to gain");
  for (const auto& operation : operations) {
    const double flops_rate = operation.name.ends_with("_fp8") ? kFp8Flops : kBf16Flops;
    const double floor = 1e3 * std::max(operation.bytes / kH200CopyBytesPerSecond, operation.flops / flops_rate);
    std::printf("  %-28s %5d %8.3f %6.0f %6.0f %8.3f %6.1f%% %6.1f%%\n", operation.name.c_str(), operation.calls,
                operation.ms, operation.bytes / operation.ms / 1e6, operation.flops / operation.ms / 1e9, floor,
                100 * operation.ms / total, 100 * (operation.ms - floor) / total);
  }
  std::printf("  %-28s %5s %8.3f\n\n", "sum", "", total);
}

// 512 tokens a row after a prompt of 16, the 50 likeliest tokens on the host after each; the floor is reading weights
// and half the cache.
void bench_decode(const Settings& settings, const std::string& name) {
  constexpr int kPrompt = 16, kTokens = 512;
  ModelOptions options;
  options.config = config_by_name(name);
  options.precision = Precision::bf16;
  options.purpose = Purpose::inference;
  options.batch_size = 1;
  options.seq_len = 1024;
  RankGroup alone;
  GPT2Cuda model(options, settings.cuda, alone);
  const Tokens tokens(kPrompt, options.config.vocab);
  for (const int rows : {1, 8, 64}) {
    const auto decoder = model.make_decoder(rows, kPrompt + kTokens + 2);
    std::vector<float> logits(static_cast<size_t>(rows) * static_cast<size_t>(options.config.vocab));
    std::vector<RowTokens> prompts;
    std::vector<RowToken> next;
    for (int row = 0; row < rows; ++row) {
      prompts.push_back({row, tokens.inputs});
      next.push_back({row, row});
    }
    decoder->prefill(prompts, logits);
    constexpr int kLikely = 50;
    std::vector<TokenLogit> likeliest(static_cast<size_t>(rows) * kLikely);
    for (int i = 0; i < 2; ++i) decoder->decode(next, kLikely, likeliest); // plans, then the graph
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kTokens; ++i) decoder->decode(next, kLikely, likeliest);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const double weights = 2.0 * static_cast<double>(parameter_count(options.config));
    const double cache = 4.0 * options.config.layers * options.config.channels * rows * (kPrompt + kTokens / 2);
    std::printf("%-12s decode %3d rows %9.0f tok/s %8.3f ms a step (floor %.3f)\n", name.c_str(), rows,
                rows * kTokens / seconds, 1e3 * seconds / kTokens, 1e3 * (weights + cache) / kH200CopyBytesPerSecond);
  }
}

void bench(const Settings& settings, const std::string& name, const std::string& precision) {
  ModelOptions options;
  options.config = config_by_name(name);
  options.precision = precision == "fp8" ? Precision::fp8 : Precision::bf16;
  options.fp8.lm_head = settings.fp8_lm_head;
  options.optimizer = settings.optimizer;
  options.documents = settings.documents;
  options.batch_size = settings.batch ? settings.batch : usual_batch(name);
  options.seq_len = 1024;
  const auto begin = std::chrono::steady_clock::now();
  RankGroup alone;
  GPT2Cuda model(options, settings.cuda, alone);
  Tokens tokens(static_cast<int64_t>(options.batch_size) * options.seq_len, options.config.vocab);
  if (options.documents.mask) tokens.plant(options.documents.separator);
  const Batch batch{options.batch_size, options.seq_len, tokens.inputs, tokens.targets};
  run_step(model, batch, 1);
  const double first = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  run_step(model, batch, 2);
  const int count = static_cast<int>(settings.step_tokens / batch.tokens());
  std::vector<double> seconds;
  for (int i = 0; i < settings.steps; ++i) seconds.push_back(run_step(model, batch, count));
  std::ranges::sort(seconds);
  const double best = seconds.front(), median = seconds[seconds.size() / 2];

  const double step_tokens = static_cast<double>(count) * static_cast<double>(batch.tokens());
  const double speed = step_tokens / best;
  const double mfu =
      speed * flops_per_token(options.config, options.seq_len) / (precision == "fp8" ? kPeakFp8 : kPeakBf16);
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  std::printf("%-12s %-5s %5d %11.0f %11.0f %9.1f %6.1f%% %6.1f%% %9.2f %9.2f\n", name.c_str(), precision.c_str(),
              options.batch_size, speed, step_tokens / median, best * 1e3, 100 * speed / h200_roofline(options),
              100 * mfu, static_cast<double>(total - free) / 1e9, first);
  std::fflush(stdout);
  if (settings.operations) print_operations(model, batch);
}

} // namespace

int main(int argc, char** argv) {
  return run_program([&] {
    const Settings settings = parse(argc, argv);
    const CudaDeviceInfo device = probe_cuda_device(settings.cuda.device);
    if (!device.usable) {
      std::printf("skipped: %s\n", device.why_not.c_str());
      return ExitCode::done;
    }
    if (settings.decode) {
      for (const auto& model : settings.models) bench_decode(settings, model);
      return ExitCode::done;
    }
    std::printf("%s, T=1024, %lld tokens a step\n", device.name.c_str(), static_cast<long long>(settings.step_tokens));
    std::printf("%-12s %-5s %5s %11s %11s %9s %7s %7s %9s %9s\n", "model", "", "batch", "tokens/s", "median", "ms/step",
                "SOL", "MFU", "GB used", "1st step s");
    for (const auto& model : settings.models)
      for (const auto& precision : settings.precisions) bench(settings, model, precision);
    return ExitCode::done;
  });
}
