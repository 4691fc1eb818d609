// What the tests of the whole model share: small shapes, batches, models with the same weights on both sides, and how
// far two tensors point apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/cpu/gpt2_cpu.h"
#include "engine/cuda/gpt2_cuda.h"
#include "engine/model/model.h"
#include "tests/gpu/gpu_test.h"
#include "tests/memory_state.h"

namespace gpt2 {

using testing::MemoryState;

inline GPT2Config small_config(int layers = 2, int heads = 2, int channels = 128) {
  return {.name = "small",
          .layers = layers,
          .heads = heads,
          .channels = channels,
          .seq_len = 64,
          .vocab = 1000,
          .padded_vocab = 1024};
}

// As narrow as the kernels in which products have GELU and softmax as epilogues allow (kernels/sm90).
inline GPT2Config wide_config() {
  GPT2Config config = small_config(2, 12, 768);
  config.padded_vocab = 1152;
  return config;
}

inline ModelOptions small_options(Precision precision, const GPT2Config& config = small_config()) {
  ModelOptions options;
  options.config = config;
  options.precision = precision;
  options.batch_size = 4;
  options.seq_len = config.seq_len;
  options.seed = 7;
  return options;
}

// Bits that repeat: plans by rule, never by time.
inline CudaModelOptions deterministic() {
  CudaModelOptions options;
  options.deterministic = true;
  return options;
}

struct TokenBatch {
  // Random tokens; every `ignored_every`-th target is ignored (0: none, 1: all).
  TokenBatch(int B, int T, int vocab, uint64_t seed, size_t ignored_every = 0)
      : inputs(static_cast<size_t>(B) * static_cast<size_t>(T)), targets(inputs.size()) {
    const Rng rng(seed);
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<int32_t>(rng.bits(2 * i) % static_cast<uint64_t>(vocab));
      targets[i] = static_cast<int32_t>(rng.bits(2 * i + 1) % static_cast<uint64_t>(vocab));
      if (ignored_every > 0 && i % ignored_every == 0) targets[i] = kIgnoredTarget;
    }
    view = {.batch_size = B, .seq_len = T, .inputs = inputs, .targets = targets};
  }
  TokenBatch(const TokenBatch&) = delete; // view points into this one

  std::vector<int32_t> inputs, targets;
  Batch view;
};

inline MemoryState state_of(Model& model) { return testing::saved(model); }

// Weights that BF16 holds exactly and that leave no gradient small by accident: matrices and biases of one deviation,
// LayerNorms around one.
inline MemoryState random_weights(Model& model, double deviation = 0.08) {
  MemoryState state = state_of(model);
  uint64_t stream = 100;
  for (auto& [name, tensor] : state.floats) {
    if (name.rfind("params/", 0) != 0) continue;
    const Rng rng(5, stream++);
    const bool around_one = name.find("ln_") != std::string::npos && name.find("weight") != std::string::npos;
    const size_t cols = tensor.shape.size() > 1 ? static_cast<size_t>(tensor.shape[1]) : 1;
    const bool padded = name == "params/wte.weight";
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const double value = (around_one ? 1.0 : 0.0) + deviation * rng.normal(i);
      const bool padding = padded && i / cols >= static_cast<size_t>(model.config().vocab);
      tensor.values[i] = padding ? 0.0f : bf16_decode(bf16_encode(static_cast<float>(value)));
    }
  }
  return state;
}

// A wide model's products are no larger than small_config()'s: else attention saturates, and FP8's gradients differ
// from FP32's in direction (cosines of 0.9, in the emulation too).
inline double deviation_for(const GPT2Config& config) {
  return 0.08 * std::min(1.0, std::sqrt(static_cast<double>(small_config().channels) / config.channels));
}

inline void randomize(Model& model) {
  MemoryState state = random_weights(model, deviation_for(model.config()));
  model.load_state(state);
}

inline void copy_state(Model& from, Model& to) {
  MemoryState state = state_of(from);
  to.load_state(state);
}

// Everything that training depends on; plans carry times, and are left out. NaN equals itself.
inline bool same_state(const MemoryState& a, const MemoryState& b) {
  if (a.ints != b.ints || a.floats.size() != b.floats.size()) return false;
  for (const auto& [name, tensor] : a.floats) {
    const auto other = b.floats.find(name);
    if (other == b.floats.end() || !same_bits(tensor.values, other->second.values)) {
      MESSAGE("differs: " << name);
      return false;
    }
  }
  return true;
}

inline UpdateSettings update_settings(float lr = 1e-3f) {
  UpdateSettings settings;
  settings.adamw.lr = lr;
  return settings;
}

inline StepResult train_step(Model& model, const std::vector<const TokenBatch*>& batches,
                             const UpdateSettings& settings = update_settings()) {
  const int count = static_cast<int>(batches.size());
  for (int i = 0; i < count; ++i) model.micro_step(batches[static_cast<size_t>(i)]->view, i, count);
  model.update(settings);
  return model.step_result();
}

// Steps first.., each with two micro-batches of its own; the losses.
inline std::vector<float> train(Model& model, int first, int steps,
                                const UpdateSettings& settings = update_settings()) {
  const int T = model.config().seq_len, vocab = model.config().vocab;
  std::vector<float> losses;
  for (int step = first; step < first + steps; ++step) {
    const TokenBatch a(4, T, vocab, 1000 + 2 * static_cast<uint64_t>(step)),
        b(4, T, vocab, 1001 + 2 * static_cast<uint64_t>(step), 9);
    losses.push_back(train_step(model, {&a, &b}, settings).loss);
  }
  return losses;
}

// A tensor without the part whose true gradient is zero: the key's bias adds the same to every score of a row.
inline std::vector<float> meaningful(const NamedTensor& tensor, int channels) {
  std::vector<float> values = tensor.values;
  if (tensor.name.find("attn.c_attn.bias") != std::string::npos) {
    values.erase(values.begin() + channels, values.begin() + 2 * channels);
  }
  return values;
}

struct Agreement {
  double cosine, norm_ratio;
};

inline Agreement agreement(const std::vector<float>& a, const std::vector<float>& b) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return {dot / std::sqrt(aa * bb), std::sqrt(aa / bb)};
}

// Every gradient tensor of `actual` points where `expected`'s does and is as long; returns the mean cosine.
inline double check_gradients(Model& actual, Model& expected, double least_cosine, double norm_tolerance) {
  double sum = 0;
  for (const ParameterTensor& tensor : expected.parameters().tensors()) {
    CAPTURE(tensor.name);
    const int C = expected.config().channels;
    const Agreement found = agreement(meaningful(actual.read_tensor(tensor, TensorKind::gradient), C),
                                      meaningful(expected.read_tensor(tensor, TensorKind::gradient), C));
    CHECK(found.cosine >= least_cosine);
    CHECK(std::fabs(found.norm_ratio - 1) <= norm_tolerance);
    sum += found.cosine;
  }
  return sum / static_cast<double>(expected.parameters().tensors().size());
}

inline std::vector<std::vector<float>> gradients(Model& model) {
  std::vector<std::vector<float>> all;
  for (const ParameterTensor& tensor : model.parameters().tensors()) {
    all.push_back(model.read_tensor(tensor, TensorKind::gradient).values);
  }
  return all;
}

inline bool same_gradients(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return same_bits(x, y); });
}

} // namespace gpt2
