// GELU and GELU' as epilogues of gemm_weight_stationary.cuh (K = 768, 1024, 1280) and gemm_pingpong.cuh (K = 1600),
// which describe tiles, roles and pipeline.
//
// - Bound: instruction issue of the epilogue. At C = 768 a 64 x 192 tile is 2,304 cycles of wgmma, in which a scheduler
//   issues 24 instructions per element; fc + GELU needs 21. So the forward pass stores GELU' in 8 bits.
// - Bytes: 2 per element written forward, 2 read and 3 written backward: 0.10 and 0.24 ms for 65,536 rows at copy
//   bandwidth, beside 0.20 ms of wgmma. H200, per call: fc + GELU 0.35 ms, fcproj's gradient + GELU' 0.43 ms.
#include "kernels/sm90/mlp_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/split_reduction.h"
#include "kernels/device/fp8.cuh"
#include "kernels/device/gelu_math.cuh"
#include "kernels/sm90/gemm_pingpong.cuh"
#include "kernels/sm90/gemm_weight_stationary.cuh"

namespace gpt2 {
namespace {

using namespace sm90;

// A thread holds 16 of each chunk of 64 columns: it stores 16 FP8 values of a row at once, four threads 64 bytes.
constexpr int kFp8Contiguous = 2 * kVector, kChunk = 4 * kFp8Contiguous;
__device__ void store_fp8x16(uint8_t* to, uint2 first, uint2 second) {
  *reinterpret_cast<uint4*>(to) = make_uint4(first.x, first.y, second.x, second.y);
}

// Makes the format a compile-time constant.
template <Fp8Format kFormat>
__device__ Fp8Output with_format(Fp8Output output) {
  output.format = kFormat;
  return output;
}

// An integer below 256 plus 2^23, as a float, has the integer in its lowest byte.
constexpr float kByteInFloat = 0x1p23f;
__device__ uint32_t four_bytes(float a, float b, float c, float d) {
  const uint32_t low = __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x0040);
  const uint32_t high = __byte_perm(__float_as_uint(c), __float_as_uint(d), 0x0040);
  return __byte_perm(low, high, 0x5410);
}
__device__ float byte_in_float(uint32_t word, int byte) { // 2^23 + that byte
  return __uint_as_float(__byte_perm(word, __float_as_uint(kByteInFloat), 0x7440 + byte));
}

// ---- forward ----

template <int kBlockN_, Fp8Format>
struct FcGelu {
  using Arguments = FcGeluFp8;
  static constexpr int kBlockN = kBlockN_, kContiguous = kFp8Contiguous;
  static constexpr int kConsumers = 3; // the epilogue takes longer than the wgmmas
  static constexpr int kStagingBytes = kBlockN * static_cast<int>(sizeof(float)), kLoadBytes = 0, kLoads = 0;

  __device__ FcGelu(const Arguments& p, uint8_t* staging, int warpgroup)
      : p_(p),
        bias_(reinterpret_cast<float*>(staging)),
        barrier_(epilogue_barrier_id(warpgroup)),
        scale_(p.in.meta->scale_inv * p.weight.meta->scale_inv),
        quantizer_(with_format<Fp8Format::e4m3>(p.gelu)) {}

  __device__ void fetch(int column0) {
#pragma unroll
    for (int i = 0; i < kBiases; ++i) {
      if (const int column = thread_ + i * kWarpgroup; column < kBlockN)
        fetched_[i] = __bfloat162float(p_.bias[column0 + column]);
    }
  }
  __device__ void begin(int column0, int) {
    column0_ = column0;
    warpgroup_sync(barrier_); // all threads have read the previous bias
#pragma unroll
    for (int i = 0; i < kBiases; ++i) {
      if (const int column = thread_ + i * kWarpgroup; column < kBlockN) bias_[column] = fetched_[i];
    }
    warpgroup_sync(barrier_);
  }
  __device__ void prepare(int64_t) {}

  __device__ void finish_tile(float (&accumulators)[kBlockN / 2], int64_t row0, const auto&) {
    last_row0_ = row0;
#pragma unroll
    for (int chunk = 0; chunk < kBlockN / kChunk; ++chunk) {
      Float8 activation[4]; // (row, vector)
      uint2 slope[4];
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int vector = 2 * chunk + g;
        const Float8 bias = load8(bias_ + layout_.column(vector), 0);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float steps[kVector];
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            const float x =
                fmaf(accumulators[AccumulatorLayout<kContiguous>::accumulator(vector, k, r)], scale_, bias.v[k]);
            const float sigmoid = gelu_sigmoid(x), out = gelu(x, sigmoid);
            activation[2 * r + g].v[k] = out;
            steps[k] = fmaf(gelu_gradient<true>(x, sigmoid, out), kSlopeSteps, kByteInFloat + kSlopeZero);
          }
          slope[2 * r + g] = {four_bytes(steps[0], steps[1], steps[2], steps[3]),
                              four_bytes(steps[4], steps[5], steps[6], steps[7])};
        }
      }
      quantizer_.observe(activation);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t at = (row0 + layout_.row + r) * p_.OC + column0_ + layout_.column(2 * chunk);
        store_fp8x16(p_.gelu.data + at, quantizer_.encode(activation[2 * r]), quantizer_.encode(activation[2 * r + 1]));
        store_fp8x16(p_.slope + at, slope[2 * r], slope[2 * r + 1]);
      }
    }
  }

  __device__ void end() {}

  // The FP8 value and the slope of an infinite activation are finite. One NaN is stored so that the anomaly guard sees
  // the overflow.
  __device__ void finish() {
    quantizer_.commit_warp(p_.gelu);
    if (quantizer_.overflowed()) p_.gelu.data[(last_row0_ + layout_.row) * p_.OC + column0_ + layout_.column(0)] = kNaN;
  }

 private:
  static constexpr uint8_t kNaN = 0x7F; // of E4M3

  const Arguments& p_;
  static constexpr int kBiases = (kBlockN + kWarpgroup - 1) / kWarpgroup;
  float* const bias_; // (kBlockN), in shared memory
  float fetched_[kBiases];
  const int thread_ = static_cast<int>(threadIdx.x) % kWarpgroup;
  AccumulatorLayout<kContiguous> layout_;
  int column0_ = 0, barrier_;
  int64_t last_row0_ = 0;
  float scale_;
  Fp8Quantizer quantizer_;
};

// ---- backward ----

// A transposed tile of 64 columns x 64 rows in shared memory for a TMA store: 64 bytes per column, swizzled
// (tensor_map.h). Each warp writes 16 rows.
struct alignas(512) TransposedChunk {
  uint8_t bytes[kChunk * kBlockM];

  __device__ uint8_t* chunk16(int column, int part) {
    return bytes + column * kBlockM + (part ^ (column / 2 & 3)) * 16;
  }

  // Stores 8 FP8 values of `row` and of the next row: one vector of the thread.
  __device__ void put(int vector, uint2 row, uint2 next, const AccumulatorLayout<kFp8Contiguous>& layout) {
    const uint32_t words[4] = {__byte_perm(row.x, next.x, 0x5140), __byte_perm(row.x, next.x, 0x7362),
                               __byte_perm(row.y, next.y, 0x5140), __byte_perm(row.y, next.y, 0x7362)};
    const int matrix = layout.lane / 8, i = layout.lane % 8;
    stmatrix_x4_trans(chunk16(kFp8Contiguous * (i / 2) + kVector * vector + 2 * matrix + i % 2, layout.warp), words);
  }
};

struct GeluGradientArguments {
  FcprojGeluGradientFp8 p;
  float* partials;          // (slots, OC): column sums per warpgroup (weight-stationary) or per tile (ping-pong)
  CUtensorMap gelu, slope;  // TMA loads of 64 x 64
  CUtensorMap dx_t, gelu_t; // TMA stores of 64 x 64, transposed
};

constexpr int kGradientConsumerWarpgroups = 2;

template <int kBlockN_, Fp8Format kFormat>
struct GeluGradient {
  using Arguments = GeluGradientArguments;
  struct Staging {
    TransposedChunk dx, gelu;
  };
  static constexpr int kBlockN = kBlockN_, kContiguous = kFp8Contiguous, kConsumers = kGradientConsumerWarpgroups;
  static constexpr int kStagingBytes = static_cast<int>(sizeof(Staging));
  static constexpr int kBoxBytes = kBlockM * kChunk, kLoadBytes = 2 * kBoxBytes, kLoads = kBlockN / kChunk;
  static constexpr int kVectors = kBlockN / (4 * kVector); // per thread

  __device__ static void producer_load(const Arguments& arguments, uint8_t* to, ClusterTransactionBarrier& full,
                                       int column0, int64_t row0, int chunk) {
    const int column = column0 + chunk * kChunk, row = static_cast<int>(row0);
    tma_load_2d(to, &arguments.gelu, full, column, row);
    tma_load_2d(to + kBoxBytes, &arguments.slope, full, column, row);
  }

  __device__ GeluGradient(const Arguments& arguments, uint8_t* staging, int warpgroup)
      : p_(arguments.p),
        arguments_(arguments),
        stage_(*reinterpret_cast<Staging*>(staging)),
        barrier_(epilogue_barrier_id(warpgroup)),
        unit_(p_.dout.meta->scale_inv * p_.weight_t.meta->scale_inv / kSlopeSteps),
        quantizer_(with_format<kFormat>(p_.dx), unit_) {}

  __device__ void fetch(int) {}
  __device__ void begin(int column0, int slot) {
    column0_ = column0;
    partials_ = arguments_.partials + static_cast<int64_t>(slot) * p_.OC + column0;
#pragma unroll
    for (Float8& sum : sums_) sum = {};
  }
  __device__ void prepare(int64_t) {}

  __device__ void finish_tile(float (&accumulators)[kBlockN / 2], int64_t row0, auto& inputs) {
#pragma unroll
    for (int chunk = 0; chunk < kLoads; ++chunk) {
      const uint8_t* const input = inputs.wait();
      uint4 gelu[2], slope[2]; // per row
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint8_t* const at = input + swizzled(layout_.row + r, layout_.column(0));
        gelu[r] = *reinterpret_cast<const uint4*>(at);
        slope[r] = *reinterpret_cast<const uint4*>(at + kBoxBytes);
      }
      inputs.release();
      if (issues_tma_) tma_store_wait();
      warpgroup_sync(barrier_); // staging is free
      uint2 quantized[2][2];
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int vector = 2 * chunk + g;
        stage_.gelu.put(g, half(gelu[0], g), half(gelu[1], g), layout_);
        Float8 dx[2]; // per row, in units of unit_
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint2 bytes = half(slope[r], g);
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            const float steps = byte_in_float(k < 4 ? bytes.x : bytes.y, k % 4) - (kByteInFloat + kSlopeZero);
            dx[r].v[k] = accumulators[AccumulatorLayout<kContiguous>::accumulator(vector, k, r)] * steps;
            sums_[vector].v[k] += dx[r].v[k];
          }
          quantized[r][g] = quantizer_.encode(dx[r]);
        }
        quantizer_.observe(dx);
        stage_.dx.put(g, quantized[0][g], quantized[1][g], layout_);
      }
      const int column = column0_ + chunk * kChunk;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        store_fp8x16(p_.dx.data + (row0 + layout_.row + r) * p_.OC + column + layout_.column(0), quantized[r][0],
                     quantized[r][1]);
      fence_view_async_shared();
      warpgroup_sync(barrier_);
      if (issues_tma_) {
        tma_store_2d(&arguments_.dx_t, &stage_.dx, static_cast<int>(row0), column);
        tma_store_2d(&arguments_.gelu_t, &stage_.gelu, static_cast<int>(row0), column);
        tma_store_arrive();
      }
    }
  }

  __device__ void end() {
    if (issues_tma_) tma_store_wait();
    warpgroup_sync(barrier_);                             // staging is free
    auto* const sums = reinterpret_cast<float*>(&stage_); // (warps, kBlockN)
    // Reduce-scatter over the warp's rows: a thread exchanges half of its sums with the lane 16 away, then 8, then 4.
    constexpr int kHalf = 4 * kVectors, kQuarter = kHalf / 2, kEighth = kHalf / 4;
    float halves[kHalf], quarters[kQuarter];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) halves[i] = exchanged_sum(sum(i), sum(i + kHalf), 16);
#pragma unroll
    for (int i = 0; i < kQuarter; ++i) quarters[i] = exchanged_sum(halves[i], halves[i + kQuarter], 8);
    const int first =
        (layout_.lane & 16 ? kHalf : 0) + (layout_.lane & 8 ? kQuarter : 0) + (layout_.lane & 4 ? kEighth : 0);
#pragma unroll
    for (int i = 0; i < kEighth; ++i) {
      const int index = first + i;
      sums[layout_.warp * kBlockN + layout_.column(index / kVector) + index % kVector] =
          exchanged_sum(quarters[i], quarters[i + kEighth], 4) * unit_;
    }
    warpgroup_sync(barrier_);
    for (int column = static_cast<int>(threadIdx.x) % kWarpgroup; column < kBlockN; column += kWarpgroup) {
      float total = 0;
      for (int warp = 0; warp < kWarpgroup / kWarp; ++warp) total += sums[warp * kBlockN + column];
      partials_[column] = total;
    }
  }

  __device__ void finish() { quantizer_.commit_warp(p_.dx); }

 private:
  __device__ static uint2 half(const uint4& bytes, int g) {
    return g == 0 ? make_uint2(bytes.x, bytes.y) : make_uint2(bytes.z, bytes.w);
  }

  __device__ float sum(int i) const { return sums_[i / kVector].v[i % kVector]; }

  // Byte offset in a swizzled 64-byte-row tile (tensor_map.h).
  __device__ static int swizzled(int row, int column) { return row * kChunk + (column ^ (row / 2 % 4 * 16)); }

  const FcprojGeluGradientFp8& p_;
  const Arguments& arguments_;
  float* partials_ = nullptr;
  Staging& stage_;
  AccumulatorLayout<kContiguous> layout_;
  int column0_ = 0, barrier_;
  const bool issues_tma_ = threadIdx.x % kWarpgroup == 0; // one thread per warpgroup
  float unit_;
  Fp8Quantizer quantizer_;
  Float8 sums_[kVectors];
};

// ---- launchers ----

template <template <int, Fp8Format> class Epilogue, Fp8Format kFormatA, class Arguments>
void launch(CudaStream& cuda, const Fp8Tensor& in, const Fp8Tensor& weight, const Arguments& arguments, int64_t rows,
            int C, int OC) {
  if (uses_pingpong(C))
    launch_gemm_pingpong<Epilogue, kFormatA>(cuda, {in.data, weight.data, rows, OC}, arguments);
  else
    launch_gemm_weight_stationary<Epilogue, kFormatA>(cuda, C, {in.data, weight.data, rows, OC}, arguments);
}

} // namespace

bool can_fuse_mlp_fp8(const CudaDevice& device, int64_t rows, int C, int OC) {
  return uses_pingpong(C) ? can_implement_pingpong(device, rows, C, OC)
                          : can_implement_weight_stationary(device, rows, C, OC);
}

void fc_gelu_fp8(CudaStream& cuda, const FcGeluFp8& p) {
  const NvtxRange range(cuda, "fc_gelu_fp8", 2.0 * static_cast<double>(p.rows) * p.OC, gemm_flops(p.rows, p.C, p.OC));
  const Requirements require("fc_gelu_fp8");
  require(can_fuse_mlp_fp8(*cuda.device, p.rows, p.C, p.OC), "can_fuse_mlp_fp8() holds");
  require(p.in.format == Fp8Format::e4m3 && p.weight.format == Fp8Format::e4m3, "both operands are E4M3");
  require(p.gelu.format == Fp8Format::e4m3, "the activation is E4M3");
  require(!p.gelu.amax_only(), "the activation is not amax_only");
  launch<FcGelu, Fp8Format::e4m3>(cuda, p.in, p.weight, p, p.rows, p.C, p.OC);
}

void fcproj_gelu_gradient_fp8(CudaStream& cuda, const FcprojGeluGradientFp8& p) {
  const NvtxRange range(cuda, "fcproj_gelu_gradient_fp8", 5.0 * static_cast<double>(p.rows) * p.OC,
                        gemm_flops(p.rows, p.C, p.OC));
  const Requirements require("fcproj_gelu_gradient_fp8");
  require(can_fuse_mlp_fp8(*cuda.device, p.rows, p.C, p.OC), "can_fuse_mlp_fp8() holds");
  require(p.weight_t.format == Fp8Format::e4m3, "the weight is E4M3");
  require(p.dx.format == p.dout.format, "dx and dout have the same format");
  require(!p.dx.amax_only(), "the gradient is not amax_only");
  const int slots = uses_pingpong(p.C)
                        ? pingpong_slots(p.rows)
                        : kGradientConsumerWarpgroups * weight_stationary_splits(*cuda.device, p.C, p.OC);
  const auto chunks_of = [&](const uint8_t* data) {
    return make_tensor_map(data, {{p.OC, 1, kChunk}, {p.rows, p.OC, kBlockM}});
  };
  const auto transposed_chunks_of = [&](const uint8_t* data) {
    return make_tensor_map(data, {{p.rows, 1, kBlockM}, {p.OC, p.rows, kChunk}});
  };
  const GeluGradientArguments arguments{.p = p,
                                        .partials = cuda.scratch<float>(static_cast<size_t>(slots) * p.OC),
                                        .gelu = chunks_of(p.gelu),
                                        .slope = chunks_of(p.slope),
                                        .dx_t = transposed_chunks_of(p.dx.transposed),
                                        .gelu_t = transposed_chunks_of(p.gelu_t)};
  if (p.dout.format == Fp8Format::e5m2)
    launch<GeluGradient, Fp8Format::e5m2>(cuda, p.dout, p.weight_t, arguments, p.rows, p.C, p.OC);
  else
    launch<GeluGradient, Fp8Format::e4m3>(cuda, p.dout, p.weight_t, arguments, p.rows, p.C, p.OC);
  add_column_partials(cuda, {{p.dbias}, 1, arguments.partials, slots, p.OC});
}

} // namespace gpt2
