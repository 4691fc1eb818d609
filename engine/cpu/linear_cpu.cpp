#include "engine/cpu/linear_cpu.h"

#include <algorithm>
#include <bit>

#include "kernels/fp8_quantize.h"
#include "kernels/gemm.h"

namespace gpt2 {
namespace {

// Rows per FP8 GEMM. A BLAS chooses its kernel by the number of rows, and the kernel determines a value's last bit,
// which can flip an FP8 rounding. A fixed number gives a token the same FP8 values for any split into micro-batches and
// ranks.
constexpr int64_t kFp8Rows = 32;

} // namespace

template <typename Multiply>
void LinearLayersCpu::by_rows(const LinearLayer& linear, int64_t rows, const Multiply& multiply) const {
  const int64_t chunk = is_fp8(linear) ? kFp8Rows : rows;
  for (int64_t row = 0; row < rows; row += chunk) multiply(row, std::min(chunk, rows - row));
}

bool LinearLayersCpu::is_fp8(const LinearLayer& linear) const {
  return recipe_ && recipe_->quantized(recipe_->id(linear.layer, linear.site, Fp8Role::weight));
}

const float* LinearLayersCpu::weight(const LinearLayer& linear) const {
  return (is_fp8(linear) ? buffers_.quantized_weights : buffers_.params) + linear.weight;
}

const float* LinearLayersCpu::quantize(const LinearLayer& linear, Fp8Role role, const float* in, float* out,
                                       int64_t count) {
  const int id = recipe_->id(linear.layer, linear.site, role);
  float scale = recipe_->scale(id);
  if (recipe_->measures(pass_, role)) {
    // Ranks have different tokens and need one scale: all-reduce the amax. Not at inference: rank 0 samples alone, and
    // the other ranks would not take part.
    uint32_t bits = std::bit_cast<uint32_t>(absolute_max(cpu_, in, count));
    if (pass_ != Fp8Pass::inference) communicator_.all_reduce_max(&bits, 1);
    const auto amax = std::bit_cast<float>(bits);
    scale = recipe_->current_scale(id, amax);
    if (pass_ == Fp8Pass::calibrating) recipe_->calibrate(id, amax);
  }
  Fp8Counts ignored;
  Fp8Counts* counts = pass_ == Fp8Pass::inference ? &ignored : &recipe_->counts(id);
  fp8_quantize(cpu_,
               {.out = out, .in = in, .count = count, .format = recipe_->format(id), .scale = scale, .counts = counts});
  return out;
}

const float* LinearLayersCpu::quantize_dlogits(const LinearLayer& linear, const Backward& args) {
  const int id = recipe_->id(linear.layer, linear.site, Fp8Role::grad); // static scale, no calibration
  fp8_quantize_dlogits(cpu_, {.out = args.quantized,
                              .in = args.dout,
                              .targets = args.targets,
                              .first_row = args.first_row,
                              .rows = args.rows,
                              .padded_vocab = linear.OC,
                              .scale = recipe_->scale(id),
                              .counts = &recipe_->counts(id)});
  return args.quantized;
}

void LinearLayersCpu::quantize_weight(const LinearLayer& linear) {
  if (!is_fp8(linear)) return;
  const int64_t count = static_cast<int64_t>(linear.OC) * linear.C;
  const float* const master = buffers_.params + linear.weight;
  float* const rounded = buffers_.quantized_weights + linear.weight;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) rounded[i] = bf16_decode(bf16_encode(master[i]));
  quantize(linear, Fp8Role::weight, rounded, rounded, count);
}

const float* LinearLayersCpu::quantize_input(const LinearLayer& linear, const float* in, float* kept, int64_t rows) {
  const int64_t count = rows * linear.C;
  if (!is_fp8(linear)) {
    if (kept != in) std::copy_n(in, count, kept); // a block left in BF16 among FP8 ones
    return in;
  }
  if (!recipe_->activation_copy()) return quantize(linear, Fp8Role::act, in, kept, count);
  const float* input = quantize(linear, Fp8Role::act, in, buffers_.scratch, count);
  quantize(linear, Fp8Role::act_t, in, kept, count); // last: kept may alias in
  return input;
}

void LinearLayersCpu::multiply(const LinearLayer& linear, float* out, const float* in, int64_t rows) {
  const float* bias = linear.bias == LinearLayer::kNoBias ? nullptr : buffers_.params + linear.bias;
  by_rows(linear, rows, [&](int64_t row, int64_t count) {
    gemm_forward(cpu_, {.out = out + row * linear.OC,
                        .in = in + row * linear.C,
                        .weight = weight(linear),
                        .bias = bias,
                        .rows = count,
                        .C = linear.C,
                        .OC = linear.OC});
  });
}

void LinearLayersCpu::forward(const LinearLayer& linear, const Forward& args) {
  multiply(linear, args.out, quantize_input(linear, args.in, args.kept, args.rows), args.rows);
}

void LinearLayersCpu::backward(const LinearLayer& linear, const Backward& args) {
  const float* dout = args.dout;
  if (is_fp8(linear)) {
    dout = args.targets ? quantize_dlogits(linear, args)
                        : quantize(linear, Fp8Role::grad, args.dout, args.quantized, args.rows * linear.OC);
  }
  by_rows(linear, args.rows, [&](int64_t row, int64_t count) {
    gemm_backward_input(cpu_, {.din = args.din + row * linear.C,
                               .dout = dout + row * linear.OC,
                               .weight = weight(linear),
                               .rows = count,
                               .C = linear.C,
                               .OC = linear.OC});
  });
  gemm_backward_weight(cpu_, {.dweight = buffers_.grads + linear.weight,
                              .dout = dout,
                              .in = args.kept,
                              .rows = args.rows,
                              .C = linear.C,
                              .OC = linear.OC});
}

} // namespace gpt2
