// --batch_size auto on a GPU: count which sizes fit, time them, cache the fastest in the tuning store.
#include <algorithm>
#include <chrono>
#include <optional>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/rng.h"
#include "engine/cuda/gpt2_cuda.h"
#include "engine/model/batch_sizes_that_fit.h"
#include "engine/system/tuning_store.h"

namespace gpt2 {

namespace {

constexpr int64_t kLargestMicroBatch = 65536; // tokens: no kernel gets faster beyond this
constexpr size_t kCandidates = 2;             // sizes measured; each costs a second or two of tuning
constexpr int kTimedMicroSteps = 3;

double tokens_per_second(ModelOptions options, const CudaModelOptions& cuda_options, int batch_size) {
  options.batch_size = batch_size;
  const std::unique_ptr<Model> model = make_cuda_model(options, cuda_options);
  const size_t tokens = static_cast<size_t>(batch_size) * options.seq_len;
  std::vector<int32_t> inputs(tokens), targets(tokens);
  const Rng rng(options.seed);
  for (size_t i = 0; i < tokens; ++i) inputs[i] = static_cast<int32_t>(rng.bits(i) % options.config.vocab);
  std::rotate_copy(inputs.begin(), inputs.begin() + 1, inputs.end(), targets.begin());
  const Batch batch{batch_size, options.seq_len, inputs, targets};
  const UpdateSettings no_change{}; // learning rate 0
  const auto run = [&](int count) {
    for (int i = 0; i < count; ++i) model->micro_step(batch, i, count);
    model->update(no_change);
    model->step_result();
  };
  run(2); // makes GEMM plans, then captures the graph
  const auto begin = std::chrono::steady_clock::now();
  run(kTimedMicroSteps);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return kTimedMicroSteps * static_cast<double>(tokens) / elapsed.count();
}

TuningKey question_of(const ModelOptions& options, const CudaModelOptions& cuda_options,
                      const std::vector<int>& candidates, const std::string& device) {
  std::ostringstream text;
  const GPT2Config& config = options.config;
  text << "L" << config.layers << " NH" << config.heads << " C" << config.channels << " V" << config.padded_vocab
       << " T" << options.seq_len << " precision" << static_cast<int>(options.precision) << " recompute"
       << static_cast<int>(cuda_options.recompute) << " attention" << static_cast<int>(cuda_options.attention)
       << (cuda_options.kernels == KernelChoice::general ? " general of" : " of");
  for (const int batch : candidates) text << " " << batch;
  return {device, "batch_size", text.str()};
}

// The cached candidate; 0 if the cache names none of them.
int candidate_of(const std::optional<TuningEntry>& answer, const std::vector<int>& candidates) {
  for (const int batch : candidates) {
    if (answer && answer->choice == std::to_string(batch)) return batch;
  }
  return 0;
}

// --recompute auto with --batch_size auto: none if one sequence fits without.
CudaModelOptions settled_for_one(const CudaDeviceInfo& device, ModelOptions options,
                                 const CudaModelOptions& cuda_options) {
  options.batch_size = 1;
  return settled(options, cuda_options, device.free_bytes - bytes_to_leave(device.free_bytes), 1);
}

// The largest sizes that fit the device's free memory. Throws Error(device) if none fits.
std::vector<int> candidates_for(const CudaDeviceInfo& device, ModelOptions options,
                                const CudaModelOptions& cuda_options, int target, int max_batch_size) {
  const auto bytes_of = [&](int batch_size) {
    options.batch_size = batch_size;
    return cuda_model_bytes(options, cuda_options);
  };
  const int most = static_cast<int>(std::max<int64_t>(1, kLargestMicroBatch / options.seq_len));
  std::vector<int> candidates =
      batch_sizes_that_fit(target, std::min(max_batch_size, most), device.free_bytes, bytes_of);
  if (candidates.empty()) {
    throw Error(ExitCode::device,
                "one sequence of this model needs " + format_bytes(static_cast<double>(bytes_of(1))) +
                    " of GPU memory plus " + format_bytes(static_cast<double>(bytes_to_leave(device.free_bytes))) +
                    " for the libraries, and " + format_bytes(static_cast<double>(device.free_bytes)) + " are free",
                "use --recompute block, a shorter --seq_len or a smaller --model");
  }
  if (candidates.size() > kCandidates) candidates.resize(kCandidates);
  return candidates;
}

// From the tuning store; 0: not cached.
int remembered(const TuningKey& question, const CudaModelOptions& cuda_options, const std::vector<int>& candidates) {
  return candidate_of(TuningStore(cuda_options.plan_cache).recall(question), candidates);
}

} // namespace

int predict_cuda_batch_size(const CudaDeviceInfo& device, const ModelOptions& options, const CudaModelOptions& asked,
                            int target, int max_batch_size) {
  const CudaModelOptions cuda_options = settled_for_one(device, options, asked);
  const std::vector<int> candidates = candidates_for(device, options, cuda_options, target, max_batch_size);
  if (cuda_options.deterministic) return candidates.front();
  const int known = remembered(question_of(options, cuda_options, candidates, device.name), cuda_options, candidates);
  return known ? known : candidates.front();
}

int choose_cuda_batch_size(ModelOptions options, const CudaModelOptions& asked, int target, int max_batch_size) {
  const CudaDeviceInfo device = probe_cuda_device(asked.device);
  const CudaModelOptions cuda_options = settled_for_one(device, options, asked);
  const std::vector<int> candidates = candidates_for(device, options, cuda_options, target, max_batch_size);
  if (cuda_options.deterministic || candidates.size() == 1) return candidates.front();

  const TuningKey question = question_of(options, cuda_options, candidates, device.name);
  if (const int known = remembered(question, cuda_options, candidates)) return known;
  double best_speed = 0;
  int best = candidates.front();
  for (const int batch : candidates) {
    const double speed = tokens_per_second(options, cuda_options, batch);
    if (speed > best_speed) {
      best_speed = speed;
      best = batch;
    }
  }
  const double microseconds = 1e6 * best * options.seq_len / best_speed; // a micro-step
  TuningStore(cuda_options.plan_cache).remember(question, {std::to_string(best), static_cast<float>(microseconds)});
  return best;
}

} // namespace gpt2
