// How far FP8 turns the gradients: trains GPT-2 124M in FP8, hands its weights to a BF16 model, runs the same
// micro-batches through both and compares every gradient tensor.
//
//   gradient_cosine SHARD [--steps 100] [--batch_size 16] [--model gpt2] [--bf16_lm_head]
//
// Exit status: 0 every cosine is at least 0.98 and their mean at least 0.99, 1 they are not, 77 no GPU with FP8.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/gpt2_cuda.h"
#include "engine/data/loader.h"
#include "engine/data/shard.h"
#include "engine/options/lr_schedule.h"
#include "engine/system/program.h"
#include "tests/memory_state.h"

namespace {

using namespace gpt2;

constexpr double kLeastCosine = 0.98, kLeastMean = 0.99;
constexpr int kAccumulation = 2; // micro-steps, in training and in the comparison
constexpr ExitCode kSkipped{77}; // what ctest counts as skipped
constexpr ExitCode kTooFarApart{1};

struct Settings {
  std::string shard, model = "gpt2";
  int steps = 100, batch_size = 16;
  bool fp8_lm_head = true;
};

Settings parse(int argc, char** argv) {
  const std::string usage = "gradient_cosine SHARD [--steps N] [--batch_size B] [--model NAME] [--bf16_lm_head]";
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--bf16_lm_head")
      settings.fp8_lm_head = false;
    else if (word == "--steps" && has_value)
      settings.steps = std::atoi(argv[++i]);
    else if (word == "--batch_size" && has_value)
      settings.batch_size = std::atoi(argv[++i]);
    else if (word == "--model" && has_value)
      settings.model = argv[++i];
    else if (word.rfind("--", 0) != 0 && settings.shard.empty())
      settings.shard = word;
    else
      throw Error(ExitCode::usage, "cannot use '" + word + "'", usage);
  }
  if (settings.shard.empty() || settings.steps < 1 || settings.batch_size < 1)
    throw Error(ExitCode::usage, "a shard, and at least one step and one sequence are needed", usage);
  return settings;
}

std::unique_ptr<Model> make_model(const Settings& settings, Precision precision) {
  ModelOptions options;
  options.config = config_by_name(settings.model);
  options.precision = precision;
  options.fp8.lm_head = settings.fp8_lm_head;
  options.batch_size = settings.batch_size;
  options.seq_len = options.config.seq_len;
  return make_cuda_model(options, {});
}

std::unique_ptr<Loader> open_loader(const Settings& settings, const GPT2Config& config) {
  std::vector<std::unique_ptr<TokenSource>> shards;
  shards.push_back(open_shard(settings.shard));
  auto dataset = std::make_shared<const Dataset>(std::move(shards), config.seq_len, config.vocab);
  return std::make_unique<Loader>(std::move(dataset), LoaderOptions{.batch_size = settings.batch_size});
}

// The first steps of the 300-step parity runs.
void train(Model& model, Loader& loader, int steps) {
  const Schedule schedule{.max_lr = 6e-4f, .warmup_steps = 30, .max_steps = std::max(steps, 300)};
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < kAccumulation; ++i) model.micro_step(loader.next().view(), i, kAccumulation);
    UpdateSettings update;
    update.adamw.lr = learning_rate(schedule, step);
    model.update(update);
    const StepResult result = model.step_result();
    if (result.verdict != Verdict::applied)
      throw Error(ExitCode::numerics, "step " + std::to_string(step + 1) + " was skipped: loss " +
                                          std::to_string(result.loss) + ", norm " + std::to_string(result.grad_norm));
    if ((step + 1) % 20 == 0 || step + 1 == steps)
      std::printf("step %d/%d | loss: %.4f | norm: %.4f\n", step + 1, steps, result.loss, result.grad_norm);
  }
}

void copy_state(Model& from, Model& to) {
  testing::MemoryState state = testing::saved(from);
  to.load_state(state);
}

struct Agreement {
  std::string name;
  double cosine, norm_ratio;
};

// The key's bias adds the same to every score of a row: its true gradient is zero, and noise has no direction.
std::vector<float> gradient(Model& model, const ParameterTensor& tensor) {
  std::vector<float> values = model.read_tensor(tensor, TensorKind::gradient).values;
  if (tensor.name.find("attn.c_attn.bias") != std::string::npos) {
    const int C = model.config().channels;
    values.erase(values.begin() + C, values.begin() + 2 * C);
  }
  return values;
}

Agreement agreement(const std::string& name, const std::vector<float>& a, const std::vector<float>& b) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return {name, dot / std::sqrt(aa * bb), std::sqrt(aa / bb)};
}

std::vector<Agreement> compare_gradients(Model& fp8, Model& bf16, Loader& loader) {
  for (int i = 0; i < kAccumulation; ++i) {
    const HostBatch batch = loader.next();
    fp8.micro_step(batch.view(), i, kAccumulation);
    bf16.micro_step(batch.view(), i, kAccumulation);
  }
  std::vector<Agreement> found;
  for (const ParameterTensor& tensor : bf16.parameters().tensors())
    found.push_back(agreement(tensor.name, gradient(fp8, tensor), gradient(bf16, tensor)));
  return found;
}

bool report(std::vector<Agreement> found) {
  const auto rank = [](const Agreement& a) { return std::isnan(a.cosine) ? -2.0 : a.cosine; };
  std::sort(found.begin(), found.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  std::printf("\n%-28s %9s %11s\n", "the ten furthest apart", "cosine", "norm ratio");
  for (size_t i = 0; i < std::min<size_t>(10, found.size()); ++i)
    std::printf("%-28s %9.5f %11.4f\n", found[i].name.c_str(), found[i].cosine, found[i].norm_ratio);

  double sum = 0, lowest_ratio = found.front().norm_ratio, highest_ratio = lowest_ratio;
  bool every = true;
  for (const Agreement& a : found) {
    sum += a.cosine;
    every = every && a.cosine >= kLeastCosine; // false for NaN
    lowest_ratio = std::min(lowest_ratio, a.norm_ratio);
    highest_ratio = std::max(highest_ratio, a.norm_ratio);
  }
  const double mean = sum / static_cast<double>(found.size());
  const bool ok = every && mean >= kLeastMean;
  std::printf(
      "\n%zu tensors: least cosine %.5f (at least %.2f), mean %.5f (at least %.2f), norm ratios %.4f to %.4f: %s\n",
      found.size(), found.front().cosine, kLeastCosine, mean, kLeastMean, lowest_ratio, highest_ratio,
      ok ? "ok" : "FAILED");
  return ok;
}

ExitCode run(const Settings& settings) {
  const CudaDeviceInfo device = probe_cuda_device(0);
  if (!device.usable || device.compute_capability < 89) {
    std::printf("skipped: %s\n", device.usable ? "FP8 needs compute capability 8.9" : device.why_not.c_str());
    return kSkipped;
  }
  const auto fp8 = make_model(settings, Precision::fp8);
  const auto loader = open_loader(settings, fp8->config());
  train(*fp8, *loader, settings.steps);
  const auto bf16 = make_model(settings, Precision::bf16);
  copy_state(*fp8, *bf16);
  return report(compare_gradients(*fp8, *bf16, *loader)) ? ExitCode::done : kTooFarApart;
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_program([&] { return run(parse(argc, argv)); });
}
