// cuBLASLt: the description of one GEMM, the library's algorithms for it, and the launch of one of them. Only
// algorithms with a fixed summation order are used: the same algorithm gives the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/gemm_problem.h"

struct cublasLtContext; // cublasLt.h, which only cublaslt.cpp includes

namespace gpt2 {

size_t cublaslt_version(); // 130100

class CublasLt {
 public:
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  cublasLtContext* handle() const { return handle_; }

 private:
  cublasLtContext* handle_ = nullptr;
};

struct CublasLtAlgorithm {
  std::array<uint64_t, 8> bits{}; // a cublasLtMatmulAlgo_t, which may be stored

  std::string to_hex() const;
  static std::optional<CublasLtAlgorithm> from_hex(const std::string& hex);
};

class CublasLtGemm {
 public:
  CublasLtGemm(const CublasLt& library, const GemmProblem& problem);
  ~CublasLtGemm();
  CublasLtGemm(const CublasLtGemm&) = delete;

  // Bias, aux and scales are part of the description: bind them before the calls below.
  void bind(const GemmArguments& operands) const;

  std::vector<CublasLtAlgorithm> heuristics() const; // best first; throws if empty
  bool accepts(const CublasLtAlgorithm& algorithm) const;
  bool launch(CudaStream& cuda, const CublasLtAlgorithm& algorithm,
              const GemmArguments& operands) const; // false: not launched

 private:
  struct Description;
  const CublasLt& library_;
  GemmProblem problem_;
  std::unique_ptr<Description> description_;
};

} // namespace gpt2
