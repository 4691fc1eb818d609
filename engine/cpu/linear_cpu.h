// The linear layers of the CPU engine: FP32, or FP8 emulated on the operands of their three GEMMs.
//
// Emulation: operands are rounded to the FP8 grid (kernels/fp8_quantize.h) and multiplied in FP32, as an FP8 tensor
// core with FP32 accumulation does. Attention, LayerNorm, GELU and the residual stream stay in FP32, where the GPU has
// BF16.
#pragma once

#include <optional>

#include "engine/model/fp8_recipe.h"
#include "engine/model/linear_layer.h"
#include "engine/ranks/communicator.h"
#include "kernels/backend.h"

namespace gpt2 {

class LinearLayersCpu {
 public:
  struct Buffers {
    const float* params;      // flat, the master weights
    float* grads;             // flat, of the same layout
    float* quantized_weights; // flat, of the same layout; null without FP8
    float* scratch;           // (rows, 4 C) for one quantized activation; null without FP8
  };

  LinearLayersCpu(Cpu& cpu, const Buffers& buffers, std::optional<Fp8RecipeState>& recipe, Communicator& communicator)
      : cpu_(cpu), buffers_(buffers), recipe_(recipe), communicator_(communicator) {}

  void begin_pass(Fp8Pass pass) { pass_ = pass; }

  // Master -> BF16 -> FP8, as on the GPU, where ranks may gather BF16 or FP8 weights.
  void quantize_weight(const LinearLayer& linear);

  struct Forward {
    float* out;      // (rows, OC)
    const float* in; // (rows, C)
    float* kept;     // (rows, C) input of the weight gradient; may alias in
    int64_t rows;
  };
  void forward(const LinearLayer& linear, const Forward& args);

  struct Backward {
    float* din;        // (rows, C)
    const float* dout; // (rows, OC)
    float* quantized;  // (rows, OC) scratch for dout in FP8; may alias dout
    const float* kept; // (rows, C) from forward
    int64_t rows;
    // LM head: dout is dlogits, with stochastic rounding keyed by token.
    const int32_t* targets = nullptr; // (rows)
    int64_t first_row = 0;            // position in the step, over all micro-batches and ranks
  };
  void backward(const LinearLayer& linear, const Backward& args); // writes din, accumulates the weight gradient

  // Forward in two parts, for the LM head: quantize the input once, multiply in chunks of rows.
  const float* quantize_input(const LinearLayer& linear, const float* in, float* kept, int64_t rows);
  void multiply(const LinearLayer& linear, float* out, const float* in, int64_t rows);

 private:
  bool is_fp8(const LinearLayer& linear) const;
  const float* weight(const LinearLayer& linear) const;
  template <typename Multiply> // (first row, rows)
  void by_rows(const LinearLayer& linear, int64_t rows, const Multiply& multiply) const;
  const float* quantize_dlogits(const LinearLayer& linear, const Backward& args);
  const float* quantize(const LinearLayer& linear, Fp8Role role, const float* in, float* out, int64_t count);

  Cpu& cpu_;
  Buffers buffers_;
  std::optional<Fp8RecipeState>& recipe_;
  Communicator& communicator_;
  Fp8Pass pass_ = Fp8Pass::training;
};

} // namespace gpt2
