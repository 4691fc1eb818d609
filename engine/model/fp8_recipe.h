// The FP8 recipe: which tensors are quantized, to which format, by which scale. The state machine of delayed
// scaling is the same on the CPU (emulation) and on the GPU.
//
//   scale = fp8_max * 2^-margin / max(history of amax)        kept if that amax is zero or not finite
//
// updated once per optimizer step (every `interval` steps); the amaxes of a skipped step never enter the history.
// Cold start (first step, resume from another precision, after two skipped steps in a row): one micro-batch calibrates
// with current scaling and no update.
//
// Under current scaling (--fp8_recipe, for all tensors or one kind; --fp8_current_steps) a tensor's own amax sets its
// scale, at the cost of a second pass. It enters the history all the same: delayed scaling can take over at any step.
//
// A block is quantized unless the options name it or leave_in_bf16() has taken it out of the recipe.
//
// The first updates of a run may be left in BF16 (--fp8_bf16_steps): the recipe rests, quantizes nothing, and
// calibrates when it begins. Where a run goes is decided in these steps, while the rate climbs (docs/fp8.md).
//
//   recipe    activation  its copy for the weight gradient  weight  gradient  dlogits
//   hybrid    E4M3        the same tensor                   E4M3    E5M2      E5M2, static scale
//   e4m3      E4M3        the same tensor                   E4M3    E4M3      E5M2, static scale
//   e5m2      E5M2        E4M3, a scale of its own          E4M3    E5M2      E5M2, static scale
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/enum_names.h"
#include "engine/base/float_formats.h"
#include "engine/model/state.h"
#include "kernels/fp8_quantize.h"
#include "kernels/fp8_scale.h"

namespace gpt2 {

enum class Fp8Recipe { hybrid, e4m3, e5m2 };
constexpr auto names_of(Fp8Recipe) {
  using enum Fp8Recipe;
  return std::to_array<EnumName<Fp8Recipe>>({{hybrid, "hybrid"}, {e4m3, "e4m3"}, {e5m2, "e5m2"}});
}

// Where a quantized tensor's scale comes from: the largest values of past steps (delayed), or the tensor itself in a
// second pass (current), for all of them or for one kind.
enum class Fp8Scaling { delayed, current, current_grads, current_activations, current_weights };
constexpr auto names_of(Fp8Scaling) {
  using enum Fp8Scaling;
  return std::to_array<EnumName<Fp8Scaling>>({{delayed, "delayed"},
                                              {current, "current"},
                                              {current_grads, "current_grads"},
                                              {current_activations, "current_activations"},
                                              {current_weights, "current_weights"}});
}

// What FP8 on a GPU cannot compute: its products contract over channels, and over tokens, in multiples of 16, and its
// LayerNorm holds rows of at most kMaxFp8Channels. Throws Error(usage).
void check_fp8_shape(int channels, int seq_len);

constexpr int kLargestFp8Margin = 16;     // halvings: more than E4M3 has from its largest value to its smallest
constexpr int kLongestAmaxHistory = 4096; // steps

struct Fp8Options {
  Fp8Recipe format = Fp8Recipe::hybrid;
  int margin = 1;        // scales are 2^margin smaller than the history allows: room for the next step to grow
  int interval = 1;      // optimizer steps between scale updates
  int amax_history = 16; // steps remembered
  bool lm_head = true;   // quantize the LM head as well
  Fp8Scaling scaling = Fp8Scaling::delayed;
  int64_t current_steps = 0;    // the first so many applied steps are all under current scaling, whatever follows
  int64_t bf16_steps = 0;       // the first so many updates of the run are in BF16
  std::vector<int> bf16_layers; // blocks whose products are not quantized
};

// The quantized tensors of one block, in forward order; gradients are of the GEMM's output.
// act_t: in the e5m2 recipe the weight gradient needs its activation in E4M3 (cuBLASLt has no E5M2 x E5M2),
// with a scale of its own; in the other recipes it is the same quantized tensor as the forward's.
enum class Fp8Role : uint8_t { act, act_t, weight, grad };
enum class Fp8Site : uint8_t { qkv, proj, fc, fcproj, lm_head };
constexpr int kSitesPerBlock = 4;
constexpr int kFp8Roles = 4;

// The name of a quantized tensor.
struct Fp8TensorName {
  int layer; // the block; of no meaning for the LM head
  Fp8Site site;
  Fp8Role role;

  bool is_lm_head() const { return site == Fp8Site::lm_head; }
  bool is_gelu_output() const { return site == Fp8Site::fcproj && (role == Fp8Role::act || role == Fp8Role::act_t); }
  std::string kind() const; // "fc/act": the same in every block
  std::string text() const; // "h.3/fc/act", "lm_head/weight"
};

Fp8Format format_of(Fp8Recipe recipe, Fp8Role role); // dlogits (lm_head, grad) are E5M2 in every recipe

struct Fp8TensorStats {
  Fp8TensorName tensor;
  Fp8Format format;
  float amax = 0, scale = 1;
  double saturated = 0;     // share of values beyond the format's range
  double flushed = 0;       // share of nonzero values that became zero
  bool fixed_scale = false; // dlogits: no history, and the GPU does not meter them
};

// dlogits = softmax - onehot lies in [-1, 1]: a static scale, no history.
constexpr float kDlogitsScale = 16384.0f; // 2^14: 1 maps to 16384 of E5M2's 57344

constexpr int fp8_tensor_count(int layers) { return (layers * kSitesPerBlock + 1) * kFp8Roles; }

// What a pass over the model may do to the recipe.
enum class Fp8Pass {
  training,    // scales in force, or each tensor's own under current scaling; what is seen is metered
  calibrating, // each tensor's own amax sets its scale and history
  reading,     // evaluation: leaves no trace; each tensor's own scale while calibration is due
  recomputing, // the codes of forward once more: the same scales, no trace
};

// Formats, scales and histories of every quantized tensor of a model. A step is
//
//   begin_step()                                                       nothing else of this while resting()
//   [ current_scale(id, amax) for every tensor, end_calibration() ]    where calibration_due()
//   quantize with scale(id), gathering counts(id)
//   end_step(applied)
class Fp8RecipeState {
 public:
  Fp8RecipeState(const Fp8Options& options, int layers);

  // Where a tensor's entry stands in every array of the recipe: the blocks in order, then the LM head. And back.
  int id(int layer, Fp8Site site, Fp8Role role) const;
  const Fp8TensorName& name(int id) const { return tensors_[static_cast<size_t>(id)].name; }
  const Fp8Options& options() const { return options_; }
  bool activation_copy() const { return options_.format == Fp8Recipe::e5m2; } // act_t is a tensor of its own

  // Nothing is quantized. Decided by begin_step() and kept until the next, so that what is evaluated and saved after a
  // step is as that was.
  bool resting() const { return resting_; }
  void rest(bool resting); // what ends a rest is cold, and counts its own steps from there

  // A block that is left in BF16 stays there: the choice is saved, and undone only by a state of another recipe.
  bool quantized_block(int layer) const;
  bool quantized_head() const { return options_.lm_head && !resting_; }
  void leave_in_bf16(int layer);

  bool quantized(int id) const { return tensors_[static_cast<size_t>(id)].used; }
  Fp8Format format(int id) const { return tensors_[static_cast<size_t>(id)].format; }
  float scale(int id) const { return scales_[static_cast<size_t>(id)]; }
  Fp8Counts& counts(int id) { return counts_[static_cast<size_t>(id)]; }
  std::span<const float> history(int id) const;

  // Current scaling: does a tensor's own amax set its scale in this pass, and which scale does it give?
  bool measures(Fp8Pass pass, Fp8Role role) const;
  bool measures_in_training() const; // any tensor
  bool in_current_steps() const { return applied_steps_ < options_.current_steps; }
  float current_scale(int id, float amax) const;

  bool calibration_due() const { return calibration_due_ && !resting_; }
  void calibrate(int id, float amax); // the tensor's scale and its whole history come from this amax alone
  void end_calibration();

  void begin_step();
  std::vector<uint32_t> amaxes() const; // by id, as the bits of floats, of the step under way: ranks maximise them
  void adopt_amaxes(std::span<const uint32_t> amaxes);
  void end_step(bool applied);

  void save(StateWriter& writer) const; // under "fp8/"
  // A state saved under another precision, format or history length leaves the recipe as it was made: cold, so that it
  // calibrates. So it does for a block that is quantized now and was not when the state was saved. The run's updates
  // count either way.
  void load(StateReader& reader);

  std::vector<Fp8TensorStats> stats() const; // of the last step that ended

  // A GPU keeps scales and histories in its own memory, laid out as here, and brings them back for checkpoints and
  // statistics.
  bool delayed(int id) const {
    return tensors_[static_cast<size_t>(id)].used && tensors_[static_cast<size_t>(id)].delayed;
  }
  std::span<const float> histories() const { return histories_; }
  int64_t applied_steps() const { return applied_steps_; }
  void adopt(std::span<const float> scales, std::span<const float> histories, int64_t applied_steps);
  void adopt_counts(int id, const Fp8Counts& counts, float scale);             // of the last step that ended
  void adopt_values(int id, int64_t values);                                   // how many those counts are of
  void note_skips(int64_t skipped_in_a_row);                                   // as the guard on the device counts them
  void note_applied(int64_t applied_steps) { applied_steps_ = applied_steps; } // as the device counts them

 private:
  struct Tensor {
    Fp8TensorName name;
    Fp8Format format;
    bool used;    // the recipe quantizes it
    bool delayed; // it has a history; dlogits have not
  };

  void reset(); // cold: scales 1, histories empty, calibration due, no block left in BF16 but those of the options
  void choose_tensors();
  int64_t updates() const { return updates_before_ + applied_steps_; } // of the run
  std::string signature() const;
  float* history_begin(int id) {
    return &histories_[static_cast<size_t>(id) * static_cast<size_t>(options_.amax_history)];
  }

  Fp8Options options_;
  int layers_;
  std::vector<bool> left_in_bf16_; // by layer; those of the options are not among them
  std::vector<Tensor> tensors_;    // by id
  std::vector<float> scales_;      // by id
  std::vector<float> histories_;   // (ids, amax_history), rings
  std::vector<Fp8Counts> counts_;  // of the step under way
  std::vector<Fp8Counts> last_counts_;
  std::vector<float> last_scales_; // those that last_counts_ were gathered with
  int64_t applied_steps_ = 0;      // gives the ring's slot and the interval
  int64_t updates_before_ = 0;     // those of the run that this recipe has not seen
  int64_t skipped_in_a_row_ = 0;
  bool calibration_due_ = true;
  bool resting_ = false;
};

} // namespace gpt2
