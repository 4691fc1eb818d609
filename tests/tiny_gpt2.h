// A model small enough to check by hand, and what the tests of the CPU engine do with it.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "engine/cpu/gpt2_cpu.h"
#include "engine/model/model.h"
#include "tests/memory_state.h"

namespace gpt2::testing {

inline GPT2Config tiny_config() {
  return {.name = "tiny", .layers = 2, .heads = 2, .channels = 16, .seq_len = 5, .vocab = 11, .padded_vocab = 16};
}

inline ModelOptions tiny_options(int batch_size = 4) {
  ModelOptions options;
  options.config = tiny_config();
  options.batch_size = batch_size;
  options.seq_len = options.config.seq_len;
  options.seed = 7;
  return options;
}

inline ModelOptions with_fp8(ModelOptions options, Fp8FormatChoice format = Fp8FormatChoice::hybrid) {
  options.precision = Precision::fp8;
  options.fp8.format = format;
  return options;
}

struct TokenBatch {
  std::vector<int32_t> inputs, targets;
  Batch view;

  TokenBatch(int B, int T, int vocab, uint64_t seed) : inputs(static_cast<size_t>(B * T)), targets(inputs.size()) {
    const Rng rng(seed);
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<int32_t>(rng.bits(2 * i) % static_cast<uint64_t>(vocab));
      targets[i] = static_cast<int32_t>(rng.bits(2 * i + 1) % static_cast<uint64_t>(vocab));
    }
    view = {.batch_size = B, .seq_len = T, .inputs = inputs, .targets = targets};
  }
  TokenBatch(const TokenBatch&) = delete; // view points into this one
};

// Parameters of order one, biases and LayerNorms included, so that no gradient is small by accident.
inline void randomize_parameters(Model& model, double deviation) {
  MemoryState state = saved(model);
  uint64_t stream = 100;
  for (auto& [name, tensor] : state.floats) {
    if (name.rfind("params/", 0) != 0) continue;
    const Rng rng(5, stream++);
    const double centre = name.find("ln_") != std::string::npos && name.find("weight") != std::string::npos ? 1.0 : 0.0;
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      tensor.values[i] = static_cast<float>(centre + deviation * rng.normal(i));
    }
  }
  model.load_state(state);
}

inline std::vector<double> flat_parameters(Model& model) {
  std::vector<double> flat(static_cast<size_t>(model.parameters().size()));
  for (const ParameterTensor& tensor : model.parameters().tensors()) {
    const NamedTensor copy = model.read_tensor(tensor, TensorKind::weight);
    std::copy(copy.values.begin(), copy.values.end(), flat.begin() + tensor.offset);
  }
  return flat;
}

inline std::vector<NamedTensor> all(Model& model, TensorKind kind) {
  std::vector<NamedTensor> tensors;
  for (const ParameterTensor& tensor : model.parameters().tensors()) tensors.push_back(model.read_tensor(tensor, kind));
  return tensors;
}

// Bits, so that NaN equals itself and -0 differs from 0.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool same_parameters(Model& a, Model& b) {
  for (const ParameterTensor& tensor : a.parameters().tensors()) {
    if (!same_bits(a.read_tensor(tensor, TensorKind::weight).values, b.read_tensor(tensor, TensorKind::weight).values))
      return false;
  }
  return true;
}

inline UpdateSettings settings(float lr) {
  UpdateSettings update;
  update.adamw.lr = lr;
  return update;
}

inline StepResult step(Model& model, const Batch& batch, float lr = 1e-2f) {
  model.micro_step(batch, 0, 1);
  model.update(settings(lr));
  return model.step_result();
}

// Hundreds of tiny steps: on a busy machine, threads would spend the time waiting for each other.
struct OneThread {
  const int before = omp_get_max_threads();
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before); }
};

} // namespace gpt2::testing
