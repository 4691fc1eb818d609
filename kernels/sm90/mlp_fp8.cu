// GELU and its gradient as epilogues of the products beside them (stationary_product.cuh).
//
// At C = 768 a warpgroup has 2,304 cycles for the epilogue of its 64 x 192 tile while the other one multiplies: 24
// instructions an element. Bytes: 3 an element written forward, 2 read and 3 written backward, 0.14 and 0.24 ms for
// 65,536 rows at the rate of a copy, against 0.20 ms of multiplication.
#include "kernels/sm90/mlp_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/column_sum.cuh"
#include "kernels/device/fp8.cuh"
#include "kernels/device/gelu_math.cuh"
#include "kernels/sm90/stationary_product.cuh"

namespace gpt2 {
namespace {

using namespace sm90;

// A row's codes of a chunk: this thread's 8 of its first 32 columns and of its second. Neighbours exchange halves, so
// that four threads write 64 bytes in one piece.
__device__ void store_codes(uint8_t* row, uint2 first, uint2 second, int quad) {
  const bool odd = quad % 2;
  const uint2 sent = odd ? first : second, kept = odd ? second : first;
  const uint2 received{__shfl_xor_sync(0xFFFFFFFFu, sent.x, 1), __shfl_xor_sync(0xFFFFFFFFu, sent.y, 1)};
  const uint2 low = odd ? received : kept, high = odd ? kept : received;
  *reinterpret_cast<uint4*>(row + (odd ? kGroup + 8 * (quad - 1) : 8 * quad)) =
      make_uint4(low.x, low.y, high.x, high.y);
}

// The same sink, its format known to the compiler.
template <Fp8Format kFormat>
__device__ Fp8Sink with_format(Fp8Sink sink) {
  sink.format = kFormat;
  return sink;
}

__device__ Float8 gelu8(const Float8& x) {
  Float8 out;
#pragma unroll
  for (int k = 0; k < kVector; ++k) out.v[k] = gelu(x.v[k], gelu_sigmoid(x.v[k]));
  return out;
}

// ---- forward ----

template <int kPanel_, Fp8Format>
struct FcGelu {
  using Arguments = FcGeluFp8;
  static constexpr int kPanel = kPanel_, kConsumers = 3; // its epilogue takes longer than its product
  static constexpr int kStagingBytes = 0;

  __device__ FcGelu(const Arguments& p, uint8_t*, int column0, int, int)
      : p_(p),
        column0_(column0),
        scale_(p.in.meter->inverse * p.weight.meter->inverse),
        quantizer_(with_format<Fp8Format::e4m3>(p.gelu)) {
#pragma unroll
    for (int group = 0; group < kPanel / kGroup; ++group)
      bias_[group] = load_raw(p.bias, (column0 + group * kGroup) / kVector + own_.quad);
  }

  __device__ void prepare(int64_t) {}

  __device__ void finish_tile(float (&accumulators)[kPanel / 2], int64_t row0, int64_t) {
    const int64_t row = row0 + own_.row;
#pragma unroll
    for (int chunk = 0; chunk < kPanel / kChunk; ++chunk) {
      Float8 activation[4]; // by row and group
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int group = 2 * chunk + g;
        const Float8 bias = unpack(bias_[group]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          Float8 x;
#pragma unroll
          for (int k = 0; k < kVector; ++k)
            x.v[k] = fmaf(accumulators[Ownership::accumulator(group, k, r)], scale_, bias.v[k]);
          const uint4 packed = pack(x);
          const int64_t at = (row + r) * p_.OC + column0_ + group * kGroup;
          reinterpret_cast<uint4*>(p_.pre + at)[own_.quad] = packed;
          activation[2 * r + g] = gelu8(unpack(packed)); // of what backward will read
        }
      }
      quantizer_.meter(activation);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        store_codes(p_.gelu.data + (row + r) * p_.OC + column0_ + chunk * kChunk, quantizer_.encode(activation[2 * r]),
                    quantizer_.encode(activation[2 * r + 1]), own_.quad);
    }
  }

  __device__ void finish() { quantizer_.commit_warp(p_.gelu); }

 private:
  const Arguments& p_;
  Ownership own_;
  int column0_;
  float scale_;
  uint4 bias_[kPanel / kGroup];
  Fp8Quantizer quantizer_;
};

// ---- backward ----

// Codes of a chunk (64 rows, 64 columns) on their way to the transpose: 64 bytes a column, in pieces of 16 rows, which
// are a warp's. Pieces are swizzled by the column's run of 8, so that neither stmatrix nor the reads meet in a bank.
struct TransposedChunk {
  uint8_t bytes[kChunk * kTileRows];

  __device__ uint8_t* piece(int column, int part) {
    return bytes + column * kTileRows + (part ^ (column / 8 & 3)) * 16;
  }

  // 8 codes of a row and of the next, of which the thread owns the columns from 8 * quad on in the group.
  __device__ void put(int group, uint2 codes, uint2 next, const Ownership& own) {
    const uint32_t words[4] = {__byte_perm(codes.x, next.x, 0x5140), __byte_perm(codes.x, next.x, 0x7362),
                               __byte_perm(codes.y, next.y, 0x5140), __byte_perm(codes.y, next.y, 0x7362)};
    const int matrix = own.lane / 8, i = own.lane % 8;
    store_matrices_transposed(piece(group * kGroup + 8 * (i / 2) + 2 * matrix + i % 2, own.warp), words);
  }

  // After a barrier. out: the place of (column 0, row 0) in a (columns, rows) matrix.
  __device__ void write(uint8_t* out, int64_t rows) {
#pragma unroll
    for (int i = 0; i < kChunk * kTileRows / 16 / kWarpgroup; ++i) {
      const int index = static_cast<int>(threadIdx.x) % kWarpgroup + i * kWarpgroup;
      const int column = index / 4, part = index % 4;
      *reinterpret_cast<uint4*>(out + column * rows + part * 16) = *reinterpret_cast<const uint4*>(piece(column, part));
    }
  }
};

constexpr int kGradientConsumers = 2;

struct GeluGradientArguments {
  FcprojGeluGradientFp8 p;
  float* partials; // (consumers * parts, OC): each warpgroup's column sums
};

template <int kPanel_, Fp8Format kFormat>
struct GeluGradient {
  using Arguments = GeluGradientArguments;
  static constexpr int kPanel = kPanel_, kConsumers = kGradientConsumers;
  struct Staging {
    TransposedChunk dpre, gelu;
  };
  static constexpr int kStagingBytes = 2 * static_cast<int>(sizeof(Staging)); // one is read while the next is written
  static constexpr int kGroups = kPanel / kGroup, kChunks = kPanel / kChunk;

  __device__ GeluGradient(const Arguments& arguments, uint8_t* staging, int column0, int warpgroup, int part)
      : p_(arguments.p),
        partials_(arguments.partials + static_cast<int64_t>(kConsumers * part + warpgroup) * p_.OC + column0),
        staging_(reinterpret_cast<Staging*>(staging)),
        column0_(column0),
        barrier_(epilogue_barrier(warpgroup)),
        scale_(p_.dout.meter->inverse * p_.weight_t.meter->inverse),
        dpre_quantizer_(with_format<kFormat>(p_.dpre), scale_),
        gelu_quantizer_(with_format<Fp8Format::e4m3>(p_.gelu)) {}

  __device__ void prepare(int64_t row0) { load(row0, 0); }

  __device__ void finish_tile(float (&accumulators)[kPanel / 2], int64_t row0, int64_t next_row0) {
    prefetch(next_row0);
    const int64_t row = row0 + own_.row;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint4 raw[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) raw[i / 2][i % 2] = loaded_[i / 2][i % 2];
      if (chunk + 1 < kChunks) load(row0, chunk + 1);
      Staging& stage = staging_[buffer_];
      uint2 codes[2][2]; // by row and group
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int group = 2 * chunk + g;
        uint2 gelu_codes[2];
        Float8 dpre[2]; // by row, in units of scale_
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Float8 x = unpack(raw[r][g]);
          Float8 activation;
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            const float sigmoid = gelu_sigmoid(x.v[k]);
            activation.v[k] = gelu(x.v[k], sigmoid);
            dpre[r].v[k] =
                accumulators[Ownership::accumulator(group, k, r)] * gelu_gradient(x.v[k], sigmoid, activation.v[k]);
            sums_[group].v[k] += dpre[r].v[k];
          }
          codes[r][g] = dpre_quantizer_.encode(dpre[r]);
          gelu_codes[r] = gelu_quantizer_.encode(activation);
        }
        dpre_quantizer_.meter(dpre);
        stage.dpre.put(g, codes[0][g], codes[1][g], own_);
        stage.gelu.put(g, gelu_codes[0], gelu_codes[1], own_);
      }
      const int column = column0_ + chunk * kChunk;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        store_codes(p_.dpre.data + (row + r) * p_.OC + column, codes[r][0], codes[r][1], own_.quad);
      warpgroup_barrier(barrier_);
      stage.dpre.write(p_.dpre.transposed + column * p_.rows + row0, p_.rows);
      stage.gelu.write(p_.gelu.transposed + column * p_.rows + row0, p_.rows);
      buffer_ ^= 1;
    }
  }

  __device__ void finish() {
    dpre_quantizer_.commit_warp(p_.dpre);
    warpgroup_barrier(barrier_);                           // the staging memory is free
    auto* const sums = reinterpret_cast<float*>(staging_); // (warps, panel)
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        float sum = sums_[group].v[k] * scale_;
        for (int lanes = 4; lanes < kWarp; lanes *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lanes);
        if (own_.lane < 4) sums[own_.warp * kPanel + group * kGroup + own_.quad * kVector + k] = sum;
      }
    }
    warpgroup_barrier(barrier_);
    for (int column = static_cast<int>(threadIdx.x) % kWarpgroup; column < kPanel; column += kWarpgroup) {
      float total = 0;
      for (int warp = 0; warp < kWarpgroup / kWarp; ++warp) total += sums[warp * kPanel + column];
      partials_[column] = total;
    }
  }

 private:
  __device__ void load(int64_t row0, int chunk) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int64_t at = (row0 + own_.row + r) * p_.OC + column0_ + chunk * kChunk + g * kGroup;
        loaded_[r][g] = load_raw_streaming(p_.pre + at, own_.quad);
      }
    }
  }

  // The tile's `pre`, 128 bytes a line, on its way to L2 while the other warpgroup is in its epilogue.
  __device__ void prefetch(int64_t row0) const {
    constexpr int kLinesPerRow = kPanel * 2 / 128;
    for (int line = static_cast<int>(threadIdx.x) % kWarpgroup; line < kTileRows * kLinesPerRow; line += kWarpgroup)
      prefetch_l2(p_.pre + (row0 + line / kLinesPerRow) * p_.OC + column0_ + line % kLinesPerRow * 64);
  }

  const FcprojGeluGradientFp8& p_;
  float* const partials_;
  Staging* const staging_;
  Ownership own_;
  int column0_, barrier_, buffer_ = 0;
  float scale_;
  Fp8Quantizer dpre_quantizer_, gelu_quantizer_;
  uint4 loaded_[2][2]; // by row and group: the next chunk's `pre`
  Float8 sums_[kGroups] = {};
};

// ---- launchers ----

double flops(int64_t rows, int C, int OC) { return 2.0 * static_cast<double>(rows) * C * OC; }

} // namespace

bool fused_mlp_fp8(const CudaDevice& device, int64_t rows, int C, int OC) {
  return takes_stationary(device, rows, C, OC);
}

void fc_gelu_fp8(Cuda& cuda, const FcGeluFp8& p) {
  const Range range(cuda, "fc_gelu_fp8", 3.0 * static_cast<double>(p.rows) * p.OC, flops(p.rows, p.C, p.OC));
  const Requirements require("fc_gelu_fp8");
  require(fused_mlp_fp8(*cuda.device, p.rows, p.C, p.OC), "a shape that fused_mlp_fp8() takes");
  require(p.in.format == Fp8Format::e4m3 && p.weight.format == Fp8Format::e4m3, "both factors are E4M3");
  require(p.gelu.format == Fp8Format::e4m3, "the activation is E4M3");
  launch_stationary_product<FcGelu, Fp8Format::e4m3>(cuda, p.C, {p.in.data, p.weight.data, p.rows, p.OC}, p);
}

void fcproj_gelu_gradient_fp8(Cuda& cuda, const FcprojGeluGradientFp8& p) {
  const Range range(cuda, "fcproj_gelu_gradient_fp8", 5.0 * static_cast<double>(p.rows) * p.OC,
                    flops(p.rows, p.C, p.OC));
  const Requirements require("fcproj_gelu_gradient_fp8");
  require(fused_mlp_fp8(*cuda.device, p.rows, p.C, p.OC), "a shape that fused_mlp_fp8() takes");
  require(p.weight_t.format == Fp8Format::e4m3, "the weight is E4M3");
  require(p.dpre.format == p.dout.format, "both gradients have one format");
  require(p.gelu.format == Fp8Format::e4m3, "the transposed activation is E4M3");
  require(p.gelu.metering == Fp8Metering::none, "the activation was metered in forward");
  const int count = kGradientConsumers * stationary_parts(*cuda.device, p.C, p.OC);
  const GeluGradientArguments arguments{p, cuda.scratch<float>(static_cast<size_t>(count) * p.OC)};
  const StationaryOperands operands{p.dout.data, p.weight_t.data, p.rows, p.OC};
  if (p.dout.format == Fp8Format::e5m2)
    launch_stationary_product<GeluGradient, Fp8Format::e5m2>(cuda, p.C, operands, arguments);
  else
    launch_stationary_product<GeluGradient, Fp8Format::e4m3>(cuda, p.C, operands, arguments);
  add_column_partials(cuda, {{p.dbias}, 1, arguments.partials, count, p.OC});
}

} // namespace gpt2
