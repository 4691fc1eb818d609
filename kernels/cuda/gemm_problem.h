// A GEMM as autotuning sees it: problem, arguments, and a custom kernel that may run it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

enum class GemmType : uint8_t { bf16, fp32, e4m3, e5m2 };
enum class GemmEpilogue : uint8_t { none, bias, gelu_aux_bias };

// D(m, n) = epilogue(alpha op(A) op(B) (+ D or beta C)), packed and column-major as in cuBLASLt; accumulation in FP32.
struct GemmProblem {
  bool transpose_a = false; // A is stored (k, m) instead of (m, k)
  bool transpose_b = false; // B is stored (n, k) instead of (k, n)
  int64_t m = 0, n = 0, k = 0;
  GemmType a = GemmType::bf16, b = GemmType::bf16, d = GemmType::bf16;
  GemmEpilogue epilogue = GemmEpilogue::none;
  bool accumulate = false;        // + D
  bool residual = false;          // + C
  bool fast_accumulation = false; // FP8: fewer promotions to FP32
  int64_t batch = 1;              // GEMMs; operands of each follow those of the one before
  int alignment = 256;            // bytes, of every operand: 256, else 16

  auto operator<=>(const GemmProblem&) const = default; // NOLINT(modernize-use-nullptr)
  std::string name() const; // "TN_3072x65536x768_bf16_bf16_bf16_bias": the key in plan caches and checkpoints
  size_t output_bytes() const;
};

struct GemmArguments {
  void* d = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;        // (m, n) BF16: residual input, not D
  const void* bias = nullptr;     // (m) BF16
  void* aux = nullptr;            // (m, n) BF16: GELU's input, written by gelu_aux_bias
  const float* a_scale = nullptr; // FP8: dequantization factors of A and B, on the device
  const float* b_scale = nullptr;
  float alpha = 1, beta = 1; // beta: of C
};

// One of our kernels, timed against cuBLASLt and stored by name.
struct GemmKernel {
  std::string name; // letters, digits and _; changes with the kernel's results or speed
  bool (*can_implement)(const CudaDevice&, const GemmProblem&);
  // Enqueues the GEMM. Deterministic.
  void (*launch)(CudaStream&, const GemmProblem&, const GemmArguments&);
};

} // namespace gpt2
