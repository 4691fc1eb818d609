// --batch_size auto on a GPU: what fits is counted, what is fastest is measured, and the answer is remembered.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/files.h"
#include "engine/base/log.h"
#include "engine/base/rng.h"
#include "engine/cuda/gpt2_cuda.h"

namespace gpt2 {

namespace {

constexpr double kUsableMemory = 0.92;        // of what is free: cuDNN and CUDA itself take their part
constexpr int64_t kLargestMicroBatch = 65536; // tokens: no operation gets faster beyond that
constexpr size_t kCandidates = 2;             // sizes measured; each costs a second or two of tuning
constexpr int kTimedMicroSteps = 3;

std::vector<int> divisors_that_fit(ModelOptions options, const CudaModelOptions& cuda_options, int target,
                                   int max_batch_size, int64_t free_bytes) {
  std::vector<int> fitting; // largest first
  for (int batch = std::min(target, max_batch_size); batch >= 1; --batch) {
    if (target % batch != 0 || (batch > 1 && static_cast<int64_t>(batch) * options.seq_len > kLargestMicroBatch))
      continue;
    options.batch_size = batch;
    if (static_cast<double>(cuda_model_bytes(options, cuda_options)) < kUsableMemory * static_cast<double>(free_bytes))
      fitting.push_back(batch);
  }
  return fitting;
}

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
  run(2); // plans, then the graph
  const auto begin = std::chrono::steady_clock::now();
  run(kTimedMicroSteps);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return kTimedMicroSteps * static_cast<double>(tokens) / elapsed.count();
}

// One line per question: what was asked, then the batch size.
class Memory {
 public:
  explicit Memory(const std::string& plan_cache) : path_(plan_cache.empty() ? "" : plan_cache + ".batch_sizes") {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) lines_.push_back(line);
  }
  int recall(const std::string& question) const {
    for (const std::string& line : lines_)
      if (line.rfind(question + "\t", 0) == 0) return std::atoi(line.c_str() + question.size() + 1);
    return 0;
  }
  void remember(const std::string& question, int answer) {
    if (path_.empty()) return;
    lines_.push_back(question + "\t" + std::to_string(answer));
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    try {
      make_folders(std::filesystem::path(path_).parent_path().string());
      write_file_atomic(path_, text);
    } catch (const Error& error) { // a lost note costs seconds at the next start, no more
      log_warn(error.what());
    }
  }

 private:
  std::string path_;
  std::vector<std::string> lines_;
};

std::string question_of(const ModelOptions& options, const CudaModelOptions& cuda_options,
                        const std::vector<int>& candidates, const std::string& device) {
  std::ostringstream text;
  const GPT2Config& config = options.config;
  text << device << " L" << config.layers << " NH" << config.heads << " C" << config.channels << " V"
       << config.padded_vocab << " T" << options.seq_len << " precision" << static_cast<int>(options.precision)
       << " recompute" << static_cast<int>(cuda_options.recompute) << " attention"
       << static_cast<int>(cuda_options.attention) << " of";
  for (const int batch : candidates) text << " " << batch;
  return text.str();
}

} // namespace

int choose_cuda_batch_size(ModelOptions options, const CudaModelOptions& cuda_options, int target, int max_batch_size) {
  const CudaDeviceInfo device = probe_cuda_device(cuda_options.device);
  std::vector<int> candidates = divisors_that_fit(options, cuda_options, target, max_batch_size, device.free_bytes);
  if (candidates.empty()) {
    options.batch_size = 1;
    throw Error(ExitCode::device,
                "one sequence of this model needs " +
                    format_bytes(static_cast<double>(cuda_model_bytes(options, cuda_options))) + " of GPU memory and " +
                    format_bytes(static_cast<double>(device.free_bytes)) + " are free",
                "use --recompute block, a shorter --seq_len or a smaller --model");
  }
  if (candidates.size() > kCandidates) candidates.resize(kCandidates);
  if (cuda_options.deterministic || candidates.size() == 1) return candidates.front();

  Memory memory(cuda_options.plan_cache);
  const std::string question = question_of(options, cuda_options, candidates, device.name);
  if (const int known = memory.recall(question);
      std::find(candidates.begin(), candidates.end(), known) != candidates.end())
    return known;
  double best_speed = 0;
  int best = candidates.front();
  for (const int batch : candidates) {
    const double speed = tokens_per_second(options, cuda_options, batch);
    if (speed > best_speed) {
      best_speed = speed;
      best = batch;
    }
  }
  memory.remember(question, best);
  return best;
}

} // namespace gpt2
