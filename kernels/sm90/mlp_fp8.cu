// GELU and its gradient as epilogues of the products beside them: of stationary_product.cuh, and of tiled_product.cuh
// where the panel would fill shared memory.
//
// At C = 768 a tile of 64 x 192 multiplies for 2,304 cycles, in which a scheduler issues 24 instructions an element, if
// its two or three warps never wait. So forward, which computes GELU anyway, leaves GELU' behind for backward in 8
// bits. Bytes: 2 an element written forward, 2 read and 3 written backward, 0.10 and 0.24 ms for 65,536 rows at the
// rate of a copy, against 0.20 ms of multiplication.
#include "kernels/sm90/mlp_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/column_sum.cuh"
#include "kernels/device/fp8.cuh"
#include "kernels/device/gelu_math.cuh"
#include "kernels/sm90/stationary_product.cuh"
#include "kernels/sm90/tiled_product.cuh"

namespace gpt2 {
namespace {

using namespace sm90;

// Of each 64 columns, a chunk, a thread owns 16: its codes of a row leave at once, and four threads write 64 bytes.
constexpr int kRunOfCodes = 2 * kVector, kChunk = 4 * kRunOfCodes;
__device__ void store_codes(uint8_t* to, uint2 first, uint2 second) {
  *reinterpret_cast<uint4*>(to) = make_uint4(first.x, first.y, second.x, second.y);
}

// The same sink, its format known to the compiler.
template <Fp8Format kFormat>
__device__ Fp8Sink with_format(Fp8Sink sink) {
  sink.format = kFormat;
  return sink;
}

// A whole number below 256 is the lowest byte of itself + 2^23 as a float.
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

template <int kPanel_, Fp8Format>
struct FcGelu {
  using Arguments = FcGeluFp8;
  static constexpr int kPanel = kPanel_, kRun = kRunOfCodes;
  static constexpr int kConsumers = 3; // its epilogue takes longer than its product
  static constexpr int kStagingBytes = kPanel * static_cast<int>(sizeof(float)), kInputBytes = 0, kInputs = 0;

  __device__ FcGelu(const Arguments& p, uint8_t* staging, int warpgroup)
      : p_(p),
        bias_(reinterpret_cast<float*>(staging)),
        barrier_(epilogue_barrier(warpgroup)),
        scale_(p.in.meter->inverse * p.weight.meter->inverse),
        quantizer_(with_format<Fp8Format::e4m3>(p.gelu)) {}

  __device__ void fetch(int column0) {
#pragma unroll
    for (int i = 0; i < kBiases; ++i) {
      if (const int column = thread_ + i * kWarpgroup; column < kPanel)
        fetched_[i] = __bfloat162float(p_.bias[column0 + column]);
    }
  }
  __device__ void begin(int column0, int) {
    column0_ = column0;
    warpgroup_barrier(barrier_); // the bias before has been read
#pragma unroll
    for (int i = 0; i < kBiases; ++i) {
      if (const int column = thread_ + i * kWarpgroup; column < kPanel) bias_[column] = fetched_[i];
    }
    warpgroup_barrier(barrier_);
  }
  __device__ void prepare(int64_t) {}

  __device__ void finish_tile(float (&accumulators)[kPanel / 2], int64_t row0, const auto&) {
    last_row0_ = row0;
#pragma unroll
    for (int chunk = 0; chunk < kPanel / kChunk; ++chunk) {
      Float8 activation[4]; // by row and vector
      uint2 slope[4];
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int vector = 2 * chunk + g;
        const Float8 bias = load8(bias_ + own_.column(vector), 0);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float steps[kVector];
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            const float x = fmaf(accumulators[Ownership<kRun>::accumulator(vector, k, r)], scale_, bias.v[k]);
            const float sigmoid = gelu_sigmoid(x), out = gelu(x, sigmoid);
            activation[2 * r + g].v[k] = out;
            steps[k] = fmaf(gelu_gradient<true>(x, sigmoid, out), kSlopeSteps, kByteInFloat + kSlopeZero);
          }
          slope[2 * r + g] = {four_bytes(steps[0], steps[1], steps[2], steps[3]),
                              four_bytes(steps[4], steps[5], steps[6], steps[7])};
        }
      }
      quantizer_.meter(activation);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t at = (row0 + own_.row + r) * p_.OC + column0_ + own_.column(2 * chunk);
        store_codes(p_.gelu.data + at, quantizer_.encode(activation[2 * r]), quantizer_.encode(activation[2 * r + 1]));
        store_codes(p_.slope + at, slope[2 * r], slope[2 * r + 1]);
      }
    }
  }

  __device__ void end() {}

  // An activation that overflowed must reach the anomaly guard, and its code and its slope are numbers: one becomes
  // NaN.
  __device__ void finish() {
    quantizer_.commit_warp(p_.gelu);
    if (quantizer_.overflowed()) p_.gelu.data[(last_row0_ + own_.row) * p_.OC + column0_ + own_.column(0)] = kNaN;
  }

 private:
  static constexpr uint8_t kNaN = 0x7F; // of E4M3

  const Arguments& p_;
  static constexpr int kBiases = (kPanel + kWarpgroup - 1) / kWarpgroup;
  float* const bias_; // of the panel, in shared memory
  float fetched_[kBiases];
  const int thread_ = static_cast<int>(threadIdx.x) % kWarpgroup;
  Ownership<kRun> own_;
  int column0_ = 0, barrier_;
  int64_t last_row0_ = 0;
  float scale_;
  Fp8Quantizer quantizer_;
};

// ---- backward ----

// Where a column's 16 rows, a warp's part of them, stand in a box of a (columns, rows) matrix: 64 bytes a column
// (tensor_map.h).
struct alignas(512) TransposedChunk {
  uint8_t bytes[kChunk * kTileRows];

  __device__ uint8_t* piece(int column, int part) {
    return bytes + column * kTileRows + (part ^ (column / 2 & 3)) * 16;
  }

  // 8 codes of a row and of the next, a vector that the thread owns.
  __device__ void put(int vector, uint2 codes, uint2 next, const Ownership<kRunOfCodes>& own) {
    const uint32_t words[4] = {__byte_perm(codes.x, next.x, 0x5140), __byte_perm(codes.x, next.x, 0x7362),
                               __byte_perm(codes.y, next.y, 0x5140), __byte_perm(codes.y, next.y, 0x7362)};
    const int matrix = own.lane / 8, i = own.lane % 8;
    store_matrices_transposed(piece(kRunOfCodes * (i / 2) + kVector * vector + 2 * matrix + i % 2, own.warp), words);
  }
};

struct GeluGradientArguments {
  FcprojGeluGradientFp8 p;
  float* partials;          // (slots, OC): each warpgroup's column sums, or each tile's
  CUtensorMap gelu, slope;  // boxes of a chunk
  CUtensorMap dx_t, gelu_t; // the same, transposed
};

constexpr int kGradientConsumers = 2;

template <int kPanel_, Fp8Format kFormat>
struct GeluGradient {
  using Arguments = GeluGradientArguments;
  struct Staging {
    TransposedChunk dx, gelu;
  };
  static constexpr int kPanel = kPanel_, kRun = kRunOfCodes, kConsumers = kGradientConsumers;
  static constexpr int kStagingBytes = static_cast<int>(sizeof(Staging));
  static constexpr int kBoxBytes = kTileRows * kChunk, kInputBytes = 2 * kBoxBytes, kInputs = kPanel / kChunk;
  static constexpr int kVectors = kPanel / (4 * kVector); // of a thread

  __device__ static void load_input(const Arguments& arguments, uint8_t* to, Barrier& full, int column0, int64_t row0,
                                    int chunk) {
    const int column = column0 + chunk * kChunk, row = static_cast<int>(row0);
    load_box(to, &arguments.gelu, full, column, row);
    load_box(to + kBoxBytes, &arguments.slope, full, column, row);
  }

  __device__ GeluGradient(const Arguments& arguments, uint8_t* staging, int warpgroup)
      : p_(arguments.p),
        arguments_(arguments),
        stage_(*reinterpret_cast<Staging*>(staging)),
        barrier_(epilogue_barrier(warpgroup)),
        unit_(p_.dout.meter->inverse * p_.weight_t.meter->inverse / kSlopeSteps),
        quantizer_(with_format<kFormat>(p_.dx), unit_) {}

  __device__ void fetch(int) {}
  __device__ void begin(int column0, int slot) {
    column0_ = column0;
    partials_ = arguments_.partials + static_cast<int64_t>(slot) * p_.OC + column0;
#pragma unroll
    for (Float8& sum : sums_) sum = {};
  }
  __device__ void prepare(int64_t) {}

  __device__ void finish_tile(float (&accumulators)[kPanel / 2], int64_t row0, auto& inputs) {
#pragma unroll
    for (int chunk = 0; chunk < kInputs; ++chunk) {
      const uint8_t* const input = inputs.wait();
      uint4 gelu[2], slope[2]; // by row
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint8_t* const at = input + swizzled(own_.row + r, own_.column(0));
        gelu[r] = *reinterpret_cast<const uint4*>(at);
        slope[r] = *reinterpret_cast<const uint4*>(at + kBoxBytes);
      }
      inputs.release();
      if (copies_) stores_wait_read();
      warpgroup_barrier(barrier_); // the staging memory is free
      uint2 codes[2][2];
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int vector = 2 * chunk + g;
        stage_.gelu.put(g, half(gelu[0], g), half(gelu[1], g), own_);
        Float8 dx[2]; // by row, in units of unit_
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint2 bytes = half(slope[r], g);
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            const float steps = byte_in_float(k < 4 ? bytes.x : bytes.y, k % 4) - (kByteInFloat + kSlopeZero);
            dx[r].v[k] = accumulators[Ownership<kRun>::accumulator(vector, k, r)] * steps;
            sums_[vector].v[k] += dx[r].v[k];
          }
          codes[r][g] = quantizer_.encode(dx[r]);
        }
        quantizer_.meter(dx);
        stage_.dx.put(g, codes[0][g], codes[1][g], own_);
      }
      const int column = column0_ + chunk * kChunk;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        store_codes(p_.dx.data + (row0 + own_.row + r) * p_.OC + column + own_.column(0), codes[r][0], codes[r][1]);
      fence_for_copies();
      warpgroup_barrier(barrier_);
      if (copies_) {
        store_box(&arguments_.dx_t, &stage_.dx, static_cast<int>(row0), column);
        store_box(&arguments_.gelu_t, &stage_.gelu, static_cast<int>(row0), column);
        stores_commit();
      }
    }
  }

  __device__ void end() {
    if (copies_) stores_wait_read();
    warpgroup_barrier(barrier_);                          // the staging memory is free
    auto* const sums = reinterpret_cast<float*>(&stage_); // (warps, panel)
    // Over the warp's rows: of its sums a thread sends half to the one 16 lanes away and keeps the other, and so on.
    constexpr int kHalf = 4 * kVectors, kQuarter = kHalf / 2, kEighth = kHalf / 4;
    float halves[kHalf], quarters[kQuarter];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) halves[i] = exchanged_sum(sum(i), sum(i + kHalf), 16);
#pragma unroll
    for (int i = 0; i < kQuarter; ++i) quarters[i] = exchanged_sum(halves[i], halves[i + kQuarter], 8);
    const int first = (own_.lane & 16 ? kHalf : 0) + (own_.lane & 8 ? kQuarter : 0) + (own_.lane & 4 ? kEighth : 0);
#pragma unroll
    for (int i = 0; i < kEighth; ++i) {
      const int index = first + i;
      sums[own_.warp * kPanel + own_.column(index / kVector) + index % kVector] =
          exchanged_sum(quarters[i], quarters[i + kEighth], 4) * unit_;
    }
    warpgroup_barrier(barrier_);
    for (int column = static_cast<int>(threadIdx.x) % kWarpgroup; column < kPanel; column += kWarpgroup) {
      float total = 0;
      for (int warp = 0; warp < kWarpgroup / kWarp; ++warp) total += sums[warp * kPanel + column];
      partials_[column] = total;
    }
  }

  __device__ void finish() { quantizer_.commit_warp(p_.dx); }

 private:
  __device__ static uint2 half(const uint4& codes, int g) {
    return g == 0 ? make_uint2(codes.x, codes.y) : make_uint2(codes.z, codes.w);
  }

  __device__ float sum(int i) const { return sums_[i / kVector].v[i % kVector]; }

  // Of a box in shared memory (tensor_map.h).
  __device__ static int swizzled(int row, int column) { return row * kChunk + (column ^ (row / 2 % 4 * 16)); }

  const FcprojGeluGradientFp8& p_;
  const Arguments& arguments_;
  float* partials_ = nullptr;
  Staging& stage_;
  Ownership<kRun> own_;
  int column0_ = 0, barrier_;
  const bool copies_ = threadIdx.x % kWarpgroup == 0; // this thread, for its warpgroup
  float unit_;
  Fp8Quantizer quantizer_;
  Float8 sums_[kVectors];
};

// ---- launchers ----

double flops(int64_t rows, int C, int OC) { return 2.0 * static_cast<double>(rows) * C * OC; }

template <template <int, Fp8Format> class Epilogue, Fp8Format kLeft, class Arguments>
void launch(Cuda& cuda, const Fp8Tensor& in, const Fp8Tensor& weight, const Arguments& arguments, int64_t rows, int C,
            int OC) {
  if (tiled_terms(C))
    launch_tiled_product<Epilogue, kLeft>(cuda, {in.data, weight.data, rows, OC}, arguments);
  else
    launch_stationary_product<Epilogue, kLeft>(cuda, C, {in.data, weight.data, rows, OC}, arguments);
}

} // namespace

bool fused_mlp_fp8(const CudaDevice& device, int64_t rows, int C, int OC) {
  return tiled_terms(C) ? takes_tiled(device, rows, C, OC) : takes_stationary(device, rows, C, OC);
}

void fc_gelu_fp8(Cuda& cuda, const FcGeluFp8& p) {
  const Range range(cuda, "fc_gelu_fp8", 2.0 * static_cast<double>(p.rows) * p.OC, flops(p.rows, p.C, p.OC));
  const Requirements require("fc_gelu_fp8");
  require(fused_mlp_fp8(*cuda.device, p.rows, p.C, p.OC), "a shape that fused_mlp_fp8() takes");
  require(p.in.format == Fp8Format::e4m3 && p.weight.format == Fp8Format::e4m3, "both factors are E4M3");
  require(p.gelu.format == Fp8Format::e4m3, "the activation is E4M3");
  require(!p.gelu.measures(), "the activation has its scale");
  launch<FcGelu, Fp8Format::e4m3>(cuda, p.in, p.weight, p, p.rows, p.C, p.OC);
}

void fcproj_gelu_gradient_fp8(Cuda& cuda, const FcprojGeluGradientFp8& p) {
  const Range range(cuda, "fcproj_gelu_gradient_fp8", 5.0 * static_cast<double>(p.rows) * p.OC,
                    flops(p.rows, p.C, p.OC));
  const Requirements require("fcproj_gelu_gradient_fp8");
  require(fused_mlp_fp8(*cuda.device, p.rows, p.C, p.OC), "a shape that fused_mlp_fp8() takes");
  require(p.weight_t.format == Fp8Format::e4m3, "the weight is E4M3");
  require(p.dx.format == p.dout.format, "both gradients have one format");
  require(!p.dx.measures(), "the gradient has its scale");
  const int slots =
      tiled_terms(p.C) ? tiled_slots(p.rows) : kGradientConsumers * stationary_parts(*cuda.device, p.C, p.OC);
  const auto chunks_of = [&](const uint8_t* data) {
    return make_tensor_map(data, {{p.OC, 1, kChunk}, {p.rows, p.OC, kTileRows}});
  };
  const auto transposed_chunks_of = [&](const uint8_t* data) {
    return make_tensor_map(data, {{p.rows, 1, kTileRows}, {p.OC, p.rows, kChunk}});
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
