#include "kernels/sm90/matmul_fp8_stationary.h"

#include <cuda_bf16.h>

#include "kernels/sm90/stationary_product.cuh"

namespace gpt2::sm90 {
namespace {

struct PlainArguments {
  bf16* out;            // (rows, width)
  const bf16* bias;     // (width), or null
  const bf16* residual; // (rows, width), or null
  const float *in_scale, *weight_scale;
  int64_t width;
};

// The epilogue: scale, bias, residual, BF16. Four threads write 64 bytes in one piece.
template <int kPanel_, Fp8Format>
struct Plain {
  using Arguments = PlainArguments;
  static constexpr int kPanel = kPanel_, kRun = kVector, kConsumers = 2;
  static constexpr int kStagingBytes = 0, kInputBytes = 0, kInputs = 0;

  __device__ Plain(const Arguments& p, uint8_t*, int) : p_(p), scale_(*p.in_scale * *p.weight_scale) {}

  __device__ void fetch(int) {}
  __device__ void begin(int column0, int) { column0_ = column0; }
  __device__ void prepare(int64_t row0) {
    if (!p_.residual) return;
#pragma unroll
    for (int group = 0; group < kPanel / (4 * kRun); ++group) {
#pragma unroll
      for (int r = 0; r < 2; ++r) stream_[group][r] = load_raw_streaming(p_.residual + place(row0, group, r), 0);
    }
  }

  __device__ void finish_tile(float (&accumulators)[kPanel / 2], int64_t row0, const auto&) {
#pragma unroll
    for (int group = 0; group < kPanel / (4 * kRun); ++group) {
      // From L1 each time: registers are short.
      const uint4 raw = p_.bias ? load_raw(p_.bias + column0_ + own_.column(group), 0) : uint4{};
      const Float8 bias = unpack(raw);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Float8 x;
#pragma unroll
        for (int k = 0; k < kVector; ++k)
          x.v[k] = fmaf(accumulators[Ownership<kRun>::accumulator(group, k, r)], scale_, bias.v[k]);
        const Float8 stream = unpack(stream_[group][r]); // zeros where there is no residual
#pragma unroll
        for (int k = 0; k < kVector; ++k) x.v[k] += stream.v[k];
        store8(p_.out + place(row0, group, r), 0, x);
      }
    }
  }

  __device__ void end() {}
  __device__ void finish() {}

 private:
  __device__ int64_t place(int64_t row0, int group, int r) const {
    return (row0 + own_.row + r) * p_.width + column0_ + own_.column(group);
  }

  const Arguments& p_;
  Ownership<kRun> own_;
  int column0_ = 0;
  float scale_;
  uint4 stream_[kPanel / (4 * kRun)][2] = {};
};

bool takes(const CudaDevice& device, const MatmulProduct& p) {
  return p.transpose_a && !p.transpose_b && p.a == MatmulType::e4m3 &&
         (p.b == MatmulType::e4m3 || p.b == MatmulType::e5m2) && p.d == MatmulType::bf16 &&
         p.epilogue != MatmulEpilogue::gelu_aux_bias && !p.accumulate && p.fast_accumulation && p.batch == 1 &&
         takes_stationary(device, p.n, p.k, p.m);
}

void launch(Cuda& cuda, const MatmulProduct& p, const MatmulOperands& x) {
  const ProductOperands operands{static_cast<const uint8_t*>(x.b), static_cast<const uint8_t*>(x.a), p.n,
                                 static_cast<int>(p.m)};
  const PlainArguments arguments{static_cast<bf16*>(x.d),
                                 static_cast<const bf16*>(x.bias),
                                 static_cast<const bf16*>(x.c),
                                 x.b_scale,
                                 x.a_scale,
                                 p.m};
  if (p.b == MatmulType::e4m3)
    launch_stationary_product<Plain, Fp8Format::e4m3>(cuda, p.k, operands, arguments);
  else
    launch_stationary_product<Plain, Fp8Format::e5m2>(cuda, p.k, operands, arguments);
}

} // namespace

MatmulKernel stationary_product() { return {"stationary_3", takes, launch}; }

} // namespace gpt2::sm90
