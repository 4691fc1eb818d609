// The FP8 recipe: which tensors are quantized, to which format, by which scale. Delayed scaling is the same state
// machine on the CPU (emulation) and on the GPU.
//
//   scale = fp8_max * 2^-margin / max(amax history)        unchanged if that amax is zero or not finite
//
// Scales are updated every `interval` optimizer steps. The amaxes of a skipped step never enter the history.
// Cold start (first step, resume from another precision, two skipped steps in a row): one micro-batch calibrates with
// current scaling and no update.
//
// Under current scaling (--fp8_recipe, for all tensors or one kind; --fp8_current_steps) a tensor's own amax sets its
// scale, at the cost of a second pass. The amax enters the history too: delayed scaling can take over at any step.
//
// A block is quantized unless the options name it or leave_in_bf16() has excluded it.
//
// --fp8_bf16_steps leaves the first updates of a run in BF16: the recipe is inactive, quantizes nothing, and calibrates
// at its first active step. These steps, while the learning rate climbs, decide where a run ends (docs/fp8.md).
//
//   --fp8_format  activation  its copy for the weight gradient  weight  gradient  dlogits
//   hybrid        E4M3        the same tensor                   E4M3    E5M2      E5M2, static scale
//   e4m3          E4M3        the same tensor                   E4M3    E4M3      E5M2, static scale
//   e5m2          E5M2        E4M3, a scale of its own          E4M3    E5M2      E5M2, static scale
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/enum_names.h"
#include "engine/base/float_formats.h"
#include "engine/model/state.h"
#include "kernels/fp8_quantize.h"
#include "kernels/fp8_scale.h"

namespace gpt2 {

// --fp8_format: the formats of all quantized tensors, as in the table above.
enum class Fp8FormatChoice { hybrid, e4m3, e5m2 };
constexpr auto names_of(Fp8FormatChoice) {
  using enum Fp8FormatChoice;
  return std::to_array<EnumName<Fp8FormatChoice>>({{hybrid, "hybrid"}, {e4m3, "e4m3"}, {e5m2, "e5m2"}});
}

// --fp8_recipe: for all tensors, or current scaling for one kind.
enum class Fp8ScalingRecipe { delayed, current, current_grads, current_activations, current_weights };
constexpr auto names_of(Fp8ScalingRecipe) {
  using enum Fp8ScalingRecipe;
  return std::to_array<EnumName<Fp8ScalingRecipe>>({{delayed, "delayed"},
                                                    {current, "current"},
                                                    {current_grads, "current_grads"},
                                                    {current_activations, "current_activations"},
                                                    {current_weights, "current_weights"}});
}

// Throws Error(usage) for a shape that the GPU's FP8 kernels do not take: K of a GEMM (channels, tokens) is a multiple
// of 16, and a LayerNorm row has at most kMaxFp8Channels.
void check_fp8_shape(int channels, int seq_len);

constexpr int kMaxFp8Margin = 16;     // powers of two: more than E4M3's normal range, 448 down to 2^-6
constexpr int kMaxAmaxHistory = 4096; // steps

struct Fp8Options {
  Fp8FormatChoice format = Fp8FormatChoice::hybrid;
  int margin = 1;        // scales are 2^margin below what the history allows: headroom for the next step
  int interval = 1;      // optimizer steps between scale updates
  int amax_history = 16; // length in steps
  bool lm_head = true;   // quantize the LM head as well
  Fp8ScalingRecipe scaling = Fp8ScalingRecipe::delayed;
  int64_t current_steps = 0;    // number of first applied steps under current scaling for all tensors
  int64_t bf16_steps = 0;       // number of first updates of the run in BF16
  std::vector<int> bf16_layers; // blocks whose GEMMs stay in BF16
};

// The quantized tensors of one block, in forward order; gradients are of the GEMM's output. act_t, the copy for the
// weight gradient, is a tensor of its own only under --fp8_format e5m2: cuBLASLt has no E5M2 x E5M2.
enum class Fp8Role : uint8_t { act, act_t, weight, grad };
enum class Fp8Site : uint8_t { qkv, proj, fc, fcproj, lm_head };
constexpr int kSitesPerBlock = 4;
constexpr int kFp8Roles = 4;

struct Fp8TensorName {
  int layer; // the block; unused for the LM head
  Fp8Site site;
  Fp8Role role;

  bool is_lm_head() const { return site == Fp8Site::lm_head; }
  bool is_dlogits() const { return is_lm_head() && role == Fp8Role::grad; }
  bool is_gelu_output() const { return site == Fp8Site::fcproj && (role == Fp8Role::act || role == Fp8Role::act_t); }
  std::string kind() const; // "fc/act"
  std::string text() const; // "h.3/fc/act", "lm_head/weight"
};

Fp8Format format_of(Fp8FormatChoice choice, Fp8Role role); // except dlogits (lm_head, grad), which are always E5M2

struct Fp8TensorStats {
  Fp8TensorName tensor;
  Fp8Format format;
  float amax = 0, scale = 1;
  double saturated = 0;     // share of values beyond the format's range
  double flushed = 0;       // share of nonzero values that became zero
  bool fixed_scale = false; // dlogits: no history, no statistics on the GPU
};

// dlogits = softmax - onehot lies in [-1, 1].
constexpr float kDlogitsScale = 16384.0f; // 2^14: 1 maps to 16384 of E5M2's 57344

constexpr int fp8_tensor_count(int layers) { return (layers * kSitesPerBlock + 1) * kFp8Roles; }

// Which scales a pass over the model uses, and which statistics it collects.
enum class Fp8Pass {
  training,    // the recipe's scales, or current ones under current scaling; amax and saturation statistics
  calibrating, // each tensor's own amax sets its scale and history
  inference,   // no statistics; current scales under current scaling, and while calibration is due
  recomputing, // the forward pass's FP8 values again: the same scales, no statistics
};

// Formats, scales and histories of every quantized tensor of a model. A step is
//
//   begin_step()                                                       and no other call while inactive()
//   [ current_scale(id, amax) for every tensor, end_calibration() ]    where calibration_due()
//   quantize with scale(id), gathering counts(id)
//   end_step(applied)
class Fp8RecipeState {
 public:
  Fp8RecipeState(const Fp8Options& options, int layers); // cold: scales 1, histories empty, calibration due

  // A tensor's index in every array of the recipe: the blocks in order, then the LM head.
  int id(int layer, Fp8Site site, Fp8Role role) const;
  Fp8TensorName name(int id) const;
  const Fp8Options& options() const { return options_; }
  bool activation_copy() const { return options_.format == Fp8FormatChoice::e5m2; } // act_t is a separate tensor

  // Nothing is quantized. begin_step() decides; evaluation and checkpoints after a step see that step's answer.
  bool inactive() const { return inactive_; }
  void set_inactive(bool inactive); // from inactive to active: a cold start, and applied_steps() restarts at 0

  // Permanent: checkpoints store it, and only loading a state of another recipe reverts it.
  bool quantized_block(int layer) const;
  bool quantized_head() const { return options_.lm_head && !inactive_; }
  void leave_in_bf16(int layer);

  bool quantized(int id) const;
  Fp8Format format(int id) const;
  float scale(int id) const { return scales_[static_cast<size_t>(id)]; }
  Fp8Counts& counts(int id) { return counts_[static_cast<size_t>(id)]; }

  // Current scaling: whether a tensor's own amax sets its scale in this pass, and the scale it gives.
  bool measures(Fp8Pass pass, Fp8Role role) const;
  bool measures_in_training() const; // any tensor
  bool in_current_steps() const { return applied_steps_ < options_.current_steps; }
  float current_scale(int id, float amax) const;

  bool calibration_due() const { return calibration_due_ && !inactive_; }
  void calibrate(int id, float amax); // sets the tensor's scale and its whole history
  void end_calibration();

  void begin_step();
  std::vector<uint32_t> amaxes() const; // of the current step, by id, as float bits: ranks take the maximum
  void adopt_amaxes(std::span<const uint32_t> amaxes);
  void end_step(bool applied);

  void save(StateWriter& writer) const; // under "fp8/"
  // A state of another precision, format or history length leaves the recipe cold: it calibrates. So does a block that
  // is quantized now and was not when the state was saved. The run's updates count in either case.
  void load(StateReader& reader);

  std::vector<Fp8TensorStats> stats() const; // of the last completed step

  // A GPU keeps scales and histories in device memory in the same layout; checkpoints and statistics download them.
  bool delayed(int id) const { return quantized(id) && !name(id).is_dlogits(); } // it has an amax history
  std::span<const float> histories() const { return histories_; }
  int64_t applied_steps() const { return applied_steps_; }
  void adopt(std::span<const float> scales, std::span<const float> histories, int64_t applied_steps);
  void adopt_counts(int id, const Fp8Counts& counts, float scale);             // of the last completed step
  void adopt_values(int id, int64_t values);                                   // number of elements behind those counts
  void note_skips(int64_t skipped_in_a_row);                                   // counted by the device's guard
  void note_applied(int64_t applied_steps) { applied_steps_ = applied_steps; } // counted by the device

 private:
  int64_t updates() const { return updates_before_ + applied_steps_; } // of the run
  std::string signature() const;
  float* history_begin(int id) {
    return &histories_[static_cast<size_t>(id) * static_cast<size_t>(options_.amax_history)];
  }

  Fp8Options options_;
  int layers_;
  std::vector<bool> left_in_bf16_; // by layer, without those of the options
  std::vector<float> scales_;      // by id
  std::vector<float> histories_;   // (ids, amax_history), ring buffers
  std::vector<Fp8Counts> counts_;  // of the current step
  std::vector<Fp8Counts> last_counts_;
  std::vector<float> last_scales_; // used for last_counts_
  int64_t applied_steps_ = 0;      // gives the ring buffer's slot and the interval
  int64_t updates_before_ = 0;     // updates of the run before this recipe became active
  int64_t skipped_in_a_row_ = 0;
  bool calibration_due_ = true;
  bool inactive_ = false;
};

} // namespace gpt2
