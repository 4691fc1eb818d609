// cuBLASLt plans: for each product the fastest of its heuristics, timed once on the real buffers, kept in memory and in
// a text file. Only algorithms that sum in a fixed order are considered, so the same plan gives the same bits.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"

struct cublasLtContext; // cublasLt.h, which only matmul_plans.cu includes

namespace gpt2 {

enum class MatmulType : uint8_t { bf16, fp32, e4m3, e5m2 };
enum class MatmulEpilogue : uint8_t { none, bias, gelu_aux_bias };

// D(m, n) = epilogue(op(A) op(B)) (+ D), packed and column-major as cuBLASLt counts; accumulation in FP32.
struct MatmulProduct {
  bool transpose_a = false; // A is stored (k, m) instead of (m, k)
  bool transpose_b = false; // B is stored (n, k) instead of (k, n)
  int64_t m = 0, n = 0, k = 0;
  MatmulType a = MatmulType::bf16, b = MatmulType::bf16, d = MatmulType::bf16;
  MatmulEpilogue epilogue = MatmulEpilogue::none;
  bool accumulate = false;        // beta = 1
  bool fast_accumulation = false; // FP8: fewer promotions to FP32
  int alignment = 256;            // bytes, of every operand: 256, else 16

  auto operator<=>(const MatmulProduct&) const = default;
  std::string name() const; // "TN_3072x65536x768_bf16_bf16_bf16_bias", the key in files
};

struct MatmulOperands {
  void* d = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;     // (m) BF16
  void* aux = nullptr;            // (m, n) BF16: GELU's input, written by gelu_aux_bias
  const float* a_scale = nullptr; // FP8: dequantization factors of A and B, on the device
  const float* b_scale = nullptr;
};

class MatmulPlans {
 public:
  explicit MatmulPlans(Cuda& cuda);
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;

  // Enqueues the product. The first time a product is seen it is looked up among the saved plans, else tuned (some
  // milliseconds, synchronous); a deterministic Cuda, or a stream under capture, takes the first heuristic instead.
  void run(MatmulProduct product, const MatmulOperands& operands);

  // All plans in use, one line each, for a checkpoint; and back, with precedence over the plans of the file.
  std::string to_text() const;
  void from_text(const std::string& text);

  struct Entry {
    std::string product;
    float microseconds; // 0: chosen without timing
    bool tuned;         // timed by this process
  };
  std::vector<Entry> entries() const;

 private:
  struct Plan;
  struct Algorithm;
  Plan& plan_for(const MatmulProduct& product, const MatmulOperands& operands);
  bool use_saved(Plan& plan) const;
  std::vector<Algorithm> heuristics(const Plan& plan) const;
  void tune(Plan& plan, std::vector<Algorithm>& candidates, const MatmulOperands& operands) const;
  float time(const Plan& plan, const Algorithm& algorithm, const MatmulOperands& operands, int repeats) const;
  bool launch(const Plan& plan, const Algorithm& algorithm, const MatmulOperands& operands) const;
  bool capturing() const;
  void save(const Plan& plan);

  Cuda& cuda_;
  cublasLtContext* handle_ = nullptr;
  std::string prefix_;                       // "NVIDIA H200\t130100\t": device and library version
  std::map<std::string, std::string> saved_; // prefix + product -> "algorithm in hex\tmicroseconds"
  std::map<MatmulProduct, std::unique_ptr<Plan>> plans_;
  bool save_failed_ = false;
};

} // namespace gpt2
