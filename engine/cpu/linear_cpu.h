// The linear layers of the CPU engine: plain FP32, or FP8 emulated at the doors of their three matrix products.
//
// Emulation: operands are rounded to the FP8 grid (kernels/fp8_quantize.h) and multiplied as FP32, which is what an FP8
// tensor core with FP32 accumulation computes. Attention, LayerNorm, GELU and the residual stream stay FP32; that the
// GPU rounds them to BF16 is not emulated.
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

  // All weights at once, when they have changed. Weights of the embedding are quantized for the LM head alone. The
  // master is rounded to BF16 and that to FP8: one rule for any number of ranks, which may exchange either.
  void quantize_weight(const LinearLayer& linear);

  struct Forward {
    float* out;      // (rows, OC)
    const float* in; // (rows, C)
    float* kept;     // (rows, C) what the weight gradient will read; may be in itself
    int64_t rows;
  };
  void forward(const LinearLayer& linear, const Forward& args);

  struct Backward {
    float* din;        // (rows, C)
    const float* dout; // (rows, OC)
    float* quantized;  // (rows, OC) room for dout in FP8; may be dout itself
    const float* kept; // (rows, C) from forward
    int64_t rows;
    // LM head: dout is dlogits, rounded by token.
    const int32_t* targets = nullptr; // (rows)
    int64_t first_row = 0;            // position in the step, over all micro-batches and ranks
  };
  void backward(const LinearLayer& linear, const Backward& args); // din =, the weight's gradient +=

  // Forward in two halves, for the LM head: one input, many chunks of rows.
  const float* quantize_input(const LinearLayer& linear, const float* in, float* kept,
                              int64_t rows); // what multiply reads
  void multiply(const LinearLayer& linear, float* out, const float* in, int64_t rows);

 private:
  bool is_fp8(const LinearLayer& linear) const;
  const float* weight(const LinearLayer& linear) const;
  template <typename Multiply> // (first row, rows)
  void by_rows(const LinearLayer& linear, int64_t rows, const Multiply& multiply) const;
  float measure(const float* in, int64_t count); // the tensor's amax
  const float* quantize_dlogits(const LinearLayer& linear, const Backward& args);
  const float* quantize(const LinearLayer& linear, Fp8Role role, const float* in, float* out, int64_t count);

  Cpu& cpu_;
  Buffers buffers_;
  std::optional<Fp8RecipeState>& recipe_;
  Communicator& communicator_;
  Fp8Pass pass_ = Fp8Pass::training;
};

} // namespace gpt2
