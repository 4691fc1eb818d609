// Runs each GEMM by its fastest known method: from a checkpoint, from the plan cache, or autotuned at its first use.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/system/tuning_store.h"
#include "kernels/cuda/gemm_autotune.h"

namespace gpt2 {

class GemmPlans {
 public:
  explicit GemmPlans(const CudaDevice& device);
  ~GemmPlans();
  GemmPlans(const GemmPlans&) = delete;

  // Adds one of our kernels to autotuning.
  void add(const GemmKernel& kernel);

  // Enqueues the GEMM. First use of a problem: the plan of a checkpoint, else the plan cache, else autotuning (a few
  // milliseconds, synchronous). A deterministic device and a stream under capture take cuBLASLt's first heuristic
  // instead: their choice must not depend on timing.
  void run(CudaStream& cuda, GemmProblem problem, const GemmArguments& operands);

  // All plans in use, one line each, for a checkpoint; and back. They override the plan cache.
  std::string to_text() const;
  void from_text(const std::string& text);

  struct Entry {
    std::string problem;
    std::string method; // "cublaslt", or the name of our kernel
    float microseconds; // 0: chosen without timing
    bool tuned;         // timed by this process
  };
  std::vector<Entry> entries() const;

 private:
  struct Plan;
  const Plan& plan_for(CudaStream& cuda, const GemmProblem& problem, const GemmArguments& operands);
  std::vector<const GemmKernel*> kernels_for(const GemmProblem& problem) const;
  TuningKey question_for(const GemmProblem& problem) const;
  std::optional<TimedMethod> known(const CublasLtGemm& library, const GemmProblem& problem) const;
  std::optional<GemmMethod> method_of(const std::string& choice, const CublasLtGemm& library,
                                      const GemmProblem& problem) const;

  const CudaDevice& device_;
  CublasLt library_;
  TuningStore store_;
  TuningTable pinned_; // from a checkpoint
  std::vector<std::unique_ptr<const GemmKernel>> kernels_;
  std::map<GemmProblem, std::unique_ptr<Plan>> plans_;
};

} // namespace gpt2
