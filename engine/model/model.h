// The interface of a model, split by use: TrainableModel for the training loop, EvaluableModel for evaluation, sampling
// and tools, StatefulModel for checkpoints, ObservableModel for logs and tests. Both engines implement all four: Model.
// A step is
//
//   for i in 0..count-1:  model.micro_step(batch_i, i, count)     forward, backward, accumulate
//   model.update(update)                                          norm, verdict, clip, AdamW
//   StepResult r = model.step_result()
//
// Only step_result() waits for the device: the loop fetches the next batch meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/batch.h"
#include "engine/model/config.h"
#include "engine/model/decoder.h"
#include "engine/model/fp8_recipe.h"
#include "engine/model/model_options.h"
#include "engine/model/parameters.h"
#include "engine/model/state.h"
#include "kernels/muon.h"
#include "kernels/step_verdict.h"

namespace gpt2 {

struct AdamWSettings {
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
};

// For the blocks' matrices, under Optimizer::muon.
struct MuonSettings {
  float lr = 0, momentum = 0.95f, weight_decay = 0.1f;
  int64_t momentum_warmup = 0; // applied updates over which the momentum grows from 0.85; 0: constant
  bool cautious_decay = false; // decay only where update and weight have the same sign
};

struct UpdateSettings {
  AdamWSettings adamw;
  MuonSettings muon;
  float grad_clip = 1.0f;      // 0: off
  VerdictLimits limits;        // when to skip the update
  bool stop_requested = false; // this rank received a stop signal; StepResult reports it on all ranks
};

// Losses and norms are per token, independent of gradient accumulation.
struct StepResult {
  float loss = 0;      // mean over the step's targets
  float grad_norm = 0; // before clipping
  int64_t tokens = 0;  // targets that counted
  // Under Muon: norms of the update without weight decay, for the blocks' matrices and for all other parameters.
  float matrix_update_norm = 0, adamw_update_norm = 0;
  Verdict verdict = Verdict::applied;
  int skipped_in_a_row = 0;    // steps, this one included; saved in checkpoints
  int64_t adam_step = 0;       // applied updates
  bool stop_requested = false; // some rank received a stop signal before its update
  double own_seconds = 0;      // several ranks: this rank's time without waiting for the others; 0: unknown
};

struct LossSum {
  double sum = 0;     // nats
  int64_t tokens = 0; // targets that counted
};

// A tensor in host memory, for histograms and tests. With a sharded optimizer, this rank's slice.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape; // of the whole tensor
  std::vector<float> values;  // row-major, from element `begin` on
  int64_t begin = 0;
};

struct DeviceMetric {
  std::string name; // "gpu/sm_clock_mhz"
  double value;
};

enum class TensorKind { weight, gradient };

// Bytes by purpose (parameters, gradients, moments, activations, workspace).
struct MemoryLine {
  std::string purpose;
  int64_t bytes;
  bool pinned_host = false; // pinned host memory of a GPU engine, not device memory
};
int64_t device_bytes(const std::vector<MemoryLine>& lines); // without pinned host memory

class TrainableModel {
 public:
  virtual ~TrainableModel() = default;

  virtual void micro_step(const Batch& batch, int index, int count) = 0;
  virtual void update(const UpdateSettings& settings) = 0;
  virtual StepResult step_result() = 0;

  // From the next step the GEMMs of this block stay in BF16; saved with the recipe. No effect unless the model trains
  // in FP8.
  virtual void leave_in_bf16(int /*layer*/) {}
};

class EvaluableModel {
 public:
  virtual ~EvaluableModel() = default;

  virtual const GPT2Config& config() const = 0;

  // Forward only. rows[b]: the sum of losses over the targets of sequence b, without ignored ones.
  virtual void evaluate(const Batch& batch, std::span<LossSum> rows) = 0;

  // Logits (vocab values, without padding) after the last of `tokens`; at most seq_len tokens.
  virtual void next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) = 0;

  // For texts of at most `positions` tokens, at most seq_len.
  virtual std::unique_ptr<Decoder> make_decoder(int rows, int positions);
};

LossSum evaluate(EvaluableModel& model, const Batch& batch); // over all sequences, added in order

class StatefulModel {
 public:
  virtual ~StatefulModel() = default;

  virtual const GPT2Config& config() const = 0;

  // Everything that a bit-exact resume needs: master weights, moments, Adam's step count, the guard's windows, the FP8
  // recipe's histories and scales. The snapshot owns its memory: training continues while it is written.
  virtual std::unique_ptr<StateSnapshot> snapshot() = 0;
  virtual void load_state(StateReader& reader) = 0;

  // The weights alone, e.g. published ones: moments and counts start at zero, the FP8 recipe calibrates.
  virtual void load_weights(StateReader& reader) = 0;
};

class ObservableModel {
 public:
  virtual ~ObservableModel() = default;

  virtual const ParameterTable& parameters() const = 0;
  virtual std::string precision_label() const = 0;                     // "FP32", "BF16", "FP8", "FP8 (emulated)"
  virtual bool before_fp8() const { return false; }                    // the last step was one of --fp8_bf16_steps
  virtual std::string step_label() const { return precision_label(); } // of the last step; see before_fp8()
  virtual std::string device_name() const = 0;

  // Copies one parameter tensor, or its gradient from the last micro-steps: summed over tokens and, after update(),
  // over ranks; before clipping.
  virtual NamedTensor read_tensor(const ParameterTensor& tensor, TensorKind kind) = 0;

  // Per-tensor FP8 statistics of the last step; empty unless the model trains in FP8.
  virtual std::vector<Fp8TensorStats> fp8_stats() { return {}; }

  // Clocks, power, temperature, ... for the logs; empty where unavailable.
  virtual std::vector<DeviceMetric> device_metrics() { return {}; }

  virtual std::vector<MemoryLine> memory_report() const = 0;
};

class Model : public TrainableModel, public EvaluableModel, public StatefulModel, public ObservableModel {
 public:
  const GPT2Config& config() const override = 0; // overrides both bases
};

} // namespace gpt2
