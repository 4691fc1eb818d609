// The FP8 recipe on the device: the host knows formats, names and the choice of blocks, the device scales and
// histories. A producer asks for a sink, a product for a tensor; the pass decides how scales are set and what is
// metered.
#pragma once

#include <vector>

#include "engine/cuda/cuda_buffers.h"
#include "engine/cuda/cuda_ranks.h"
#include "engine/model/fp8_recipe.h"
#include "engine/model/linear_layer.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/fp8_update.h"

namespace gpt2 {

// Room for the codes of one (R, N) matrix, both ways round.
struct Fp8Codes {
  uint8_t* data;       // (R, N): input gradients contract over N
  uint8_t* transposed; // (N, R): weight gradients contract over R
};

class Fp8Scaler {
 public:
  // `ranks`: those that must agree on a measured scale; null: one process.
  Fp8Scaler(CudaStream& cuda, const Fp8Scales& scales, const Fp8Options& options, int layers, CudaRanks* ranks);

  Fp8RecipeState& recipe() { return recipe_; }
  const Fp8RecipeState& recipe() const { return recipe_; }
  bool quantizes(int layer) const { return layer >= 0 && recipe_.quantized_block(layer); }
  void leave_in_bf16(int layer);
  void rest(bool resting);

  // ---- what products read ----
  Fp8Tensor tensor(const LinearLayer& layer, Fp8Role role, const uint8_t* codes) const;
  // The weight gradient reads the activation's own codes, or, in the e5m2 recipe, an E4M3 copy with its own scale.
  Fp8Tensor activation_for_weight_gradient(const LinearLayer& layer, const uint8_t* codes) const;

  // ---- what producers write ----
  // Calls write(sink). Under current scaling it does so twice: a first time to measure the tensor, then with the scale
  // that this gave.
  template <class Write>
  void produce(const LinearLayer& layer, Fp8Role role, Fp8Codes codes, Fp8Pass pass, Write&& write) const {
    if (recipe_.measures(pass, role)) {
      write(measuring_sink(layer, role, codes));
      take_scale(layer, role, pass);
    }
    write(sink(layer, role, codes, pass));
  }
  // The two halves of that, for a tensor that is made in pieces: all are measured before the first is written.
  Fp8Output measuring_sink(const LinearLayer& layer, Fp8Role role, Fp8Codes codes) const;
  void take_scale(const LinearLayer& layer, Fp8Role role, Fp8Pass pass) const;
  Fp8Output sink(const LinearLayer& layer, Fp8Role role, Fp8Codes codes, Fp8Pass pass) const;

  // An activation that backward makes again and writes transposed. Its values were metered in forward, unless the
  // recipe counts it as a tensor of its own.
  Fp8Output made_again(const LinearLayer& layer, uint8_t* transposed, Fp8Pass pass) const;
  // dlogits, whose scale is static: nothing is metered.
  Fp8Output dlogits(const LinearLayer& lm_head, Fp8Codes codes) const;

  // ---- the state machine ----
  bool begin_step(); // true: other tensors are quantized than in the step before, all or none
  void end_step(const StepScalars* step) const;
  void end_calibration();

  // ---- to and from the device ----
  void upload();   // formats, scales and histories of the recipe
  void download(); // scales and histories, and what was counted in the last step, into the recipe
  // weight_parts: ranks that quantize a block's weights together.
  std::vector<Fp8TensorStats> stats(const GPT2Config& config, const GPT2Offsets& at, int64_t step_tokens,
                                    int weight_parts);

 private:
  void upload_formats();
  int id(const LinearLayer& layer, Fp8Role role) const { return recipe_.id(layer.layer, layer.site, role); }
  Fp8Output sink(int id, Fp8Codes codes, Fp8Statistics statistics) const;

  CudaStream& cuda_;
  const Fp8Scales scales_;
  Fp8RecipeState recipe_;
  CudaRanks* const ranks_;
};

} // namespace gpt2
