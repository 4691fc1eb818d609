// The FP8 recipe on the device. The host holds formats, names and the choice of blocks; the device holds scales and
// histories. A producer kernel asks for an Fp8Output, a GEMM for an Fp8Tensor. The pass decides which scales apply and
// which amax and saturation statistics are collected.
#pragma once

#include <vector>

#include "engine/cuda/cuda_buffers.h"
#include "engine/cuda/cuda_ranks.h"
#include "engine/model/fp8_recipe.h"
#include "engine/model/linear_layer.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/fp8_update.h"

namespace gpt2 {

// Memory for the FP8 values of one (R, N) matrix, row-major and transposed; either may be null.
struct Fp8Values {
  uint8_t* data;       // (R, N): input gradients contract over N
  uint8_t* transposed; // (N, R): weight gradients contract over R
};

class Fp8Scaler {
 public:
  // `ranks`: agree on current scales; null: one process.
  Fp8Scaler(CudaStream& cuda, const Fp8Scales& scales, const Fp8Options& options, int layers, CudaRanks* ranks);

  Fp8RecipeState& recipe() { return recipe_; }
  const Fp8RecipeState& recipe() const { return recipe_; }
  bool quantizes(int layer) const { return layer >= 0 && recipe_.quantized_block(layer); }
  void leave_in_bf16(int layer);
  void set_inactive(bool inactive);

  // ---- GEMM operands ----
  Fp8Tensor tensor(const LinearLayer& layer, Fp8Role role, const uint8_t* data) const;
  // The weight gradient reads the forward activation or, under --fp8_format e5m2, an E4M3 copy with a separate scale.
  Fp8Tensor activation_for_weight_gradient(const LinearLayer& layer, const uint8_t* data) const;

  // ---- outputs of producer kernels ----
  // Calls write(output). Under current scaling it calls write twice: to find the amax, then with the scale from it.
  template <class Write>
  void produce(const LinearLayer& layer, Fp8Role role, Fp8Values values, Fp8Pass pass, Write&& write) const {
    if (recipe_.measures(pass, role)) {
      write(amax_output(layer, role, values));
      set_current_scale(layer, role, pass);
    }
    write(output(layer, role, values, pass));
  }
  // The parts of produce(), for a tensor that is written in chunks: the amax of all chunks comes first.
  Fp8Output amax_output(const LinearLayer& layer, Fp8Role role, Fp8Values values) const;
  void set_current_scale(const LinearLayer& layer, Fp8Role role, Fp8Pass pass) const;
  Fp8Output output(const LinearLayer& layer, Fp8Role role, Fp8Values values, Fp8Pass pass) const;

  // An activation that backward recomputes and writes transposed. Forward collected its statistics, unless act_t is a
  // separate tensor.
  Fp8Output recomputed_output(const LinearLayer& layer, uint8_t* transposed, Fp8Pass pass) const;
  // dlogits have a static scale and no statistics.
  Fp8Output dlogits(const LinearLayer& lm_head, Fp8Values values) const;

  // ---- the state machine ----
  bool begin_step(); // true: the recipe became active or inactive
  void end_step(const StepScalars* step) const;
  void end_calibration();

  // ---- to and from the device ----
  void upload();   // formats, scales and histories of the recipe
  void download(); // scales, histories and the last step's statistics, into the recipe
  // weight_parts: ranks that each quantized a part of a block's weights.
  std::vector<Fp8TensorStats> stats(const GPT2Config& config, const GPT2Offsets& at, int64_t step_tokens,
                                    int weight_parts);

 private:
  void upload_formats();
  int id(const LinearLayer& layer, Fp8Role role) const { return recipe_.id(layer.layer, layer.site, role); }
  Fp8Output output(int id, Fp8Values values, Fp8Statistics statistics) const;

  CudaStream& cuda_;
  const Fp8Scales scales_;
  Fp8RecipeState recipe_;
  CudaRanks* const ranks_;
};

} // namespace gpt2
