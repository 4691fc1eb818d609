// Writes one step of gradient accumulation, for comparison with PyTorch and Hugging Face: weights, tokens, logits, loss
// and the gradient of every tensor.
//
//   dump_gradients FOLDER [--device cpu|cuda] [--precision fp32|bf16|fp8] [--model small|gpt2|...] ...
//
// FOLDER/manifest.txt has `key = value` lines and one line an array (name, type, shape), in the order in which
// FOLDER/values.bin holds them, 4 bytes a value. Gradients are of the sum over tokens. Exit status 77: no such device.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/rng.h"
#include "engine/cpu/gpt2_cpu.h"
#include "engine/cuda/gpt2_cuda.h"
#include "engine/model/model.h"
#include "engine/system/program.h"
#include "tests/memory_state.h"

namespace {

using namespace gpt2;

constexpr ExitCode kSkipped{77};    // what ctest counts as skipped
constexpr int kSmallSeqLen = 32;    // less than the small model has positions: the others get no gradient
constexpr int kLogitPositions = 24; // at least so many, where the sequence has them

struct Settings {
  std::string folder, device = "cpu", precision, model = "small";
  int batch_size = 4, seq_len = 0, micro_steps = 2, warm_up = 8;
  int muon_steps = 0, separator = -1;
  bool fp8_lm_head = false;
};

struct Skipped {
  std::string why;
};

// ---- the file ----

class Dump {
 public:
  explicit Dump(const std::filesystem::path& folder)
      : manifest_(folder / "manifest.txt"), values_(folder / "values.bin", std::ios::binary) {}

  template <class T>
  void note(const std::string& key, const T& value) {
    manifest_ << key << " = " << value << '\n';
  }

  template <class T>
  void add(const std::string& name, const char* type, std::span<const T> values, const std::vector<int64_t>& shape) {
    static_assert(sizeof(T) == 4);
    manifest_ << name << ' ' << type;
    for (const int64_t extent : shape) manifest_ << ' ' << extent;
    manifest_ << '\n';
    values_.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size_bytes()));
  }

  void add(const std::string& name, float value) { add<float>(name, "f4", std::span(&value, 1), {1}); }

  void finish() {
    manifest_.flush();
    values_.flush();
    if (!manifest_ || !values_)
      throw Error(ExitCode::disk, "cannot write the dump", "name a folder that can be written");
  }

 private:
  std::ofstream manifest_, values_;
};

// ---- the model ----

ModelOptions model_options(const Settings& settings) {
  ModelOptions options;
  if (settings.model == "small") { // a vocabulary that is a multiple of nothing
    options.config = {
        .name = "small", .layers = 3, .heads = 4, .channels = 64, .seq_len = 48, .vocab = 211, .padded_vocab = 256};
  } else {
    options.config = config_by_name(settings.model);
  }
  const int T = settings.seq_len > 0 ? settings.seq_len : settings.model == "small" ? kSmallSeqLen : 256;
  if (T > options.config.seq_len)
    throw Error(ExitCode::usage, "--seq_len " + std::to_string(T) + " is beyond the model's positions",
                "use at most " + std::to_string(options.config.seq_len));
  options.seq_len = T;
  options.batch_size = settings.batch_size;
  options.fp8.lm_head = settings.fp8_lm_head;
  if (settings.muon_steps > 0) options.optimizer = Optimizer::muon;
  options.documents = {.mask = settings.separator >= 0, .separator = settings.separator};
  return options;
}

std::unique_ptr<Model> make_model(const Settings& settings) {
  ModelOptions options = model_options(settings);
  const bool fp8 = settings.precision == "fp8";
  if (settings.device == "cpu") {
    if (settings.precision == "bf16")
      throw Error(ExitCode::usage, "the CPU engine has no BF16", "use --precision fp32 or fp8, or --device cuda");
    options.precision = fp8 ? Precision::fp8 : Precision::fp32;
    return make_cpu_model(options);
  }
  if (settings.precision == "fp32")
    throw Error(ExitCode::usage, "the GPU computes in BF16 or FP8", "use --precision bf16 or fp8, or --device cpu");
#ifdef GPT2_WITH_CUDA
  const CudaDeviceInfo device = probe_cuda_device(0);
  if (!device.usable) throw Skipped{device.why_not};
  if (fp8 && device.compute_capability < 89) throw Skipped{"FP8 needs compute capability 8.9"};
  options.precision = fp8 ? Precision::fp8 : Precision::bf16;
  return make_cuda_model(options, {});
#else
  throw Skipped{"built without CUDA"};
#endif
}

// GPT-2's deviation of 0.02 would leave the small model so nearly linear that no test could tell one GELU from another.
void widen(Model& model) {
  testing::MemoryState state = testing::saved(model);
  for (auto& [name, tensor] : state.floats) {
    if (name.rfind("params/", 0) != 0 || tensor.shape.size() != 2) continue;
    for (float& value : tensor.values) value *= 6;
  }
  model.load_state(state);
}

// ---- the tokens ----

// Micro-batch `index` of all that a run sees. Three of four tokens follow from the one before, within an alphabet of
// 64, so that there is something to learn; the others come from the whole vocabulary, small numbers more often. Some
// targets are ignored, in every micro-batch another share, so that a mean of means is not the mean over all tokens.
struct MicroBatch {
  MicroBatch(int B, int T, int vocab, int index) {
    const Rng rng(2024, static_cast<uint64_t>(index));
    const int ignored_every = 5 + 2 * (index % 2);
    uint64_t draw = 0;
    for (int b = 0; b < B; ++b) {
      int64_t token = 0;
      for (int t = 0; t <= T; ++t) {
        const double u = rng.uniform(draw++);
        token = t > 0 && rng.bits(draw++) % 4 != 0 ? (5 * token + 3) % 64 : static_cast<int64_t>(u * u * vocab);
        const bool ignored = (b * T + t) % ignored_every == 0;
        if (t < T) inputs.push_back(static_cast<int32_t>(token));
        if (t > 0) targets.push_back(ignored ? kIgnoredTarget : static_cast<int32_t>(token));
      }
    }
    view = {.batch_size = B, .seq_len = T, .inputs = inputs, .targets = targets};
  }
  MicroBatch(const MicroBatch&) = delete; // view points into this one

  std::vector<int32_t> inputs, targets;
  Batch view;
};

// ---- one step ----

void dump(const Settings& settings) {
  const auto model = make_model(settings);
  if (settings.model == "small") widen(*model);
  const GPT2Config& config = model->config();
  const int B = settings.batch_size, T = model_options(settings).seq_len, count = settings.micro_steps;
  std::vector<std::unique_ptr<MicroBatch>> batches;
  const auto accumulate = [&](int step) {
    batches.clear();
    for (int i = 0; i < count; ++i) {
      batches.push_back(std::make_unique<MicroBatch>(B, T, config.vocab, step * count + i));
      model->micro_step(batches.back()->view, i, count);
    }
  };

  // A few steps first, so that biases and LayerNorms are no longer at their trivial initial values, and FP8's scales
  // come from other batches than the one they are used for.
  UpdateSettings update;
  update.adamw.lr = std::min(3e-3f, defaults_for(config).max_lr);
  for (int step = 0; step < settings.warm_up; ++step) {
    accumulate(step);
    model->update(update);
  }
  accumulate(settings.warm_up);

  Dump out(settings.folder);
  out.note("device", model->device_name());
  out.note("precision", settings.precision);
  out.note("model", config.name);
  out.note("heads", config.heads);
  std::vector<int32_t> inputs, targets;
  for (const auto& batch : batches) {
    inputs.insert(inputs.end(), batch->inputs.begin(), batch->inputs.end());
    targets.insert(targets.end(), batch->targets.begin(), batch->targets.end());
  }
  out.add<int32_t>("inputs", "i4", inputs, {count, B, T});
  out.add<int32_t>("targets", "i4", targets, {count, B, T});
  for (const ParameterTensor& tensor : model->parameters().tensors()) {
    const NamedTensor weight = model->read_tensor(tensor, TensorKind::weight);
    const NamedTensor gradient = model->read_tensor(tensor, TensorKind::gradient);
    out.add<float>("weight/" + tensor.name, "f4", weight.values, weight.shape);
    out.add<float>("gradient/" + tensor.name, "f4", gradient.values, gradient.shape);
  }
  std::vector<float> logits(static_cast<size_t>(config.vocab)); // of the first sequence, up to its last position
  for (int position = T - 1; position >= 0; position -= std::max(1, T / kLogitPositions)) {
    model->next_token_logits(std::span(inputs).first(static_cast<size_t>(position) + 1), logits);
    out.add<float>("logits/" + std::to_string(position), "f4", logits, {config.vocab});
  }
  model->update(update);
  const StepResult result = model->step_result(); // of the accumulated micro-steps, before the update
  out.add("loss", result.loss);
  out.add("grad_norm", result.grad_norm);
  out.finish();
}

// ---- many steps under Muon ----

// Of every step the gradients, summed over tokens, and the weights that it leaves.
void dump_muon(const Settings& settings) {
  const auto model = make_model(settings);
  if (settings.model == "small") widen(*model);
  const int B = settings.batch_size, T = model_options(settings).seq_len, count = settings.micro_steps;
  UpdateSettings update;
  update.muon.lr = 2e-2f, update.muon.momentum_warmup = 5; // over in the middle of ten steps
  update.adamw.lr = 1e-2f;
  update.grad_clip = 0.5f;
  Dump out(settings.folder);
  out.note("steps", settings.muon_steps);
  out.note("momentum_warmup", update.muon.momentum_warmup);
  const std::pair<const char*, float> numbers[] = {{"lr", update.muon.lr},
                                                   {"adamw_lr", update.adamw.lr},
                                                   {"momentum", update.muon.momentum},
                                                   {"weight_decay", update.muon.weight_decay},
                                                   {"grad_clip", update.grad_clip}};
  for (const auto& [name, value] : numbers) out.add(name, value);
  const auto add_all = [&](const std::string& prefix, TensorKind kind) {
    for (const ParameterTensor& tensor : model->parameters().tensors()) {
      const NamedTensor read = model->read_tensor(tensor, kind);
      out.add<float>(prefix + tensor.name, "f4", read.values, read.shape);
    }
  };
  add_all("0/weight/", TensorKind::weight);
  for (int step = 1; step <= settings.muon_steps; ++step) {
    for (int i = 0; i < count; ++i)
      model->micro_step(MicroBatch(B, T, model->config().vocab, step * count + i).view, i, count);
    model->update(update);
    const StepResult result = model->step_result();
    const std::string prefix = std::to_string(step) + "/";
    add_all(prefix + "gradient/", TensorKind::gradient);
    add_all(prefix + "weight/", TensorKind::weight);
    out.add(prefix + "tokens", static_cast<float>(result.tokens));
    out.add(prefix + "update_norm", result.matrix_update_norm);
    out.add(prefix + "adamw_update_norm", result.adamw_update_norm);
  }
  out.finish();
}

// False after --help.
bool parse(int argc, char** argv, Settings& settings) {
  CLI::App app("Writes weights, logits, loss and gradients of one accumulated step");
  app.option_defaults()->always_capture_default();
  app.add_option("folder", settings.folder, "where to")->required();
  app.add_option("--device", settings.device, "which engine")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--precision", settings.precision, "default: fp32 on the CPU, bf16 on the GPU")
      ->check(CLI::IsMember({"fp32", "bf16", "fp8"}));
  app.add_option("--model", settings.model, "small, or a name that train_gpt2_fp8 knows");
  app.add_option("--batch_size", settings.batch_size, "sequences per micro-step")->check(CLI::Range(1, 1024));
  app.add_option("--seq_len", settings.seq_len, "tokens per sequence; 0: 32 for small, else 256")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--micro_steps", settings.micro_steps, "accumulated before the gradients are written")
      ->check(CLI::Range(1, 1024));
  app.add_option("--warm_up", settings.warm_up, "optimizer steps before")->check(CLI::Range(0, 100000));
  app.add_flag("--fp8_lm_head", settings.fp8_lm_head, "quantize the LM head, too");
  app.add_option("--muon_steps", settings.muon_steps, "instead: gradients and weights of so many steps under Muon")
      ->check(CLI::Range(0, 1000));
  app.add_option("--separator", settings.separator, "attention within documents that begin with this token");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw Error(ExitCode::usage, error.what(), "see --help");
  }
  if (settings.precision.empty()) settings.precision = settings.device == "cpu" ? "fp32" : "bf16";
  return true;
}

ExitCode run(int argc, char** argv) {
  Settings settings;
  if (!parse(argc, argv, settings)) return ExitCode::done;
  try {
    if (settings.muon_steps > 0)
      dump_muon(settings);
    else
      dump(settings);
    return ExitCode::done;
  } catch (const Skipped& skipped) {
    std::printf("skipped: %s\n", skipped.why.c_str());
    return kSkipped;
  }
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_program([&] { return run(argc, argv); });
}
