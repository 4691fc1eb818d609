// What a model can do, cut by use: the loop trains (TrainableModel), evaluation, sampling and tools read forward passes
// (EvaluableModel), checkpoints take and give state (StatefulModel), logs and tests look inside (ObservableModel). Both
// engines are all four: Model. A step is
//
//   for i in 0..count-1:  model.micro_step(batch_i, i, count)     forward, backward, accumulate
//   model.update(update)                                          norm, verdict, clip, AdamW
//   StepResult r = model.step_result()                            the only call that waits
//
// Nothing but step_result() makes the host wait for a device, so the loop can fetch the next batch meanwhile.
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

// Of the blocks' matrices, under Optimizer::muon.
struct MuonSettings {
  float lr = 0, momentum = 0.95f, weight_decay = 0.1f;
  int64_t momentum_warmup = 0; // applied updates over which the momentum grows from 0.85; 0: constant
  MuonIteration iteration = MuonIteration::newton_schulz;
  bool cautious_decay = false; // decay only where update and weight have the same sign
};

struct UpdateSettings {
  AdamWSettings adamw;
  MuonSettings muon;
  float grad_clip = 1.0f;      // 0: off
  VerdictLimits limits;        // when to skip the update
  bool stop_requested = false; // this rank was asked to stop: StepResult tells all of them
};

// What one optimizer step did. Losses and norms are per token, whatever the accumulation.
struct StepResult {
  float loss = 0;      // mean over the step's targets
  float grad_norm = 0; // before clipping
  int64_t tokens = 0;  // targets that counted
  // Under Muon, norms of what the step subtracted from the weights, without decay: the blocks' matrices, all else.
  float matrix_update_norm = 0, adamw_update_norm = 0;
  Verdict verdict = Verdict::applied;
  int skipped_in_a_row = 0;    // steps, this one included; a checkpoint remembers them
  int64_t adam_step = 0;       // updates applied so far
  bool stop_requested = false; // some rank was asked to stop before its update
  double own_seconds = 0;      // many ranks: of this step, without waiting for the others; 0: not known
};

struct LossSum {
  double sum = 0;     // nats
  int64_t tokens = 0; // targets that counted
};

// A tensor in host memory, for histograms and tests. Where ranks share the optimizer's state, this rank's part of it.
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
  bool beside_device = false; // of a GPU engine: pinned host memory
};
int64_t device_bytes(const std::vector<MemoryLine>& lines); // of all that is not beside it

class TrainableModel {
 public:
  virtual ~TrainableModel() = default;

  virtual void micro_step(const Batch& batch, int index, int count) = 0;
  virtual void update(const UpdateSettings& settings) = 0;
  virtual StepResult step_result() = 0;

  // From the next step on the products of this block are not quantized; the choice is saved with the recipe. Nothing
  // happens unless the model trains in FP8.
  virtual void leave_in_bf16(int /*layer*/) {}
};

class EvaluableModel {
 public:
  virtual ~EvaluableModel() = default;

  virtual const GPT2Config& config() const = 0;

  // Forward only. rows[b]: the sum of losses over the targets of sequence b that are not ignored.
  virtual void evaluate(const Batch& batch, std::span<LossSum> rows) = 0;

  // Logits (vocab values, padding excluded) that follow the last of `tokens`; at most seq_len tokens.
  virtual void next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) = 0;

  // For texts of at most `positions` tokens, at most seq_len.
  virtual std::unique_ptr<Decoder> make_decoder(int rows, int positions);
};

LossSum evaluate(EvaluableModel& model, const Batch& batch); // over all sequences, added in order

class StatefulModel {
 public:
  virtual ~StatefulModel() = default;

  virtual const GPT2Config& config() const = 0;

  // Everything that going on bit for bit needs: master weights, moments, Adam's step count, the guard's windows, the
  // FP8 recipe's histories and scales. The snapshot owns its memory: training may go on while it is written.
  virtual std::unique_ptr<StateSnapshot> snapshot() = 0;
  virtual void load_state(StateReader& reader) = 0;

  // The weights alone, as from published ones: moments and counts start at zero, the FP8 recipe calibrates.
  virtual void load_weights(StateReader& reader) = 0;
};

class ObservableModel {
 public:
  virtual ~ObservableModel() = default;

  virtual const ParameterTable& parameters() const = 0;
  virtual std::string precision_label() const = 0;  // "FP32", "BF16", "FP8", "FP8 (emulated)"
  virtual bool before_fp8() const { return false; } // the last step was not in FP8 yet, later ones are
  virtual std::string step_label() const { return precision_label(); } // of the last step: BF16 before FP8 begins
  virtual std::string device_name() const = 0;

  // Copies one parameter tensor, or the gradient accumulated by the last micro-steps (of the sum over tokens and, after
  // update(), over ranks; before clipping).
  virtual NamedTensor read_tensor(const ParameterTensor& tensor, TensorKind kind) = 0;

  // Per-tensor FP8 statistics of the last step; empty unless the model trains in FP8.
  virtual std::vector<Fp8TensorStats> fp8_stats() { return {}; }

  // Clocks, power, temperature and the like, for the logs; empty where there is nothing to read.
  virtual std::vector<DeviceMetric> device_metrics() { return {}; }

  virtual std::vector<MemoryLine> memory_report() const = 0;
};

class Model : public TrainableModel, public EvaluableModel, public StatefulModel, public ObservableModel {
 public:
  const GPT2Config& config() const override = 0; // one answer for both seams that ask
};

} // namespace gpt2
