// cuBLASLt: one problem's description, the library's algorithms for it, and how one of them runs. Only algorithms that
// sum in a fixed order are considered, so the same algorithm gives the same bits.
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
  std::array<uint64_t, 8> bits{}; // a cublasLtMatmulAlgo_t, which the library lets us keep

  std::string to_hex() const;
  static std::optional<CublasLtAlgorithm> from_hex(const std::string& hex);
};

class CublasLtGemm {
 public:
  CublasLtGemm(const CublasLt& library, const GemmProblem& problem);
  ~CublasLtGemm();
  CublasLtGemm(const CublasLtGemm&) = delete;

  // Bias, aux and scales are part of the description: to be bound before the other three are called.
  void bind(const GemmArguments& operands) const;

  std::vector<CublasLtAlgorithm> heuristics() const; // best guess first; throws if there is none
  bool accepts(const CublasLtAlgorithm& algorithm) const;
  bool launch(CudaStream& cuda, const CublasLtAlgorithm& algorithm,
              const GemmArguments& operands) const; // did it start?

 private:
  struct Description;
  const CublasLt& library_;
  GemmProblem problem_;
  std::unique_ptr<Description> description_;
};

} // namespace gpt2
