// Matrix products, each by the way that was fastest: remembered, or timed the first time the problem is met.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/tuning_store.h"
#include "kernels/cuda/gemm_autotune.h"

namespace gpt2 {

class GemmPlans {
 public:
  explicit GemmPlans(const CudaDevice& device);
  ~GemmPlans();
  GemmPlans(const GemmPlans&) = delete;

  // A kernel of ours competes from now on for every problem that it takes.
  void add(const GemmKernel& kernel);

  // Enqueues the problem. The first time it is met: by the plan of a checkpoint if there is one; else as remembered, or
  // timed (some milliseconds, synchronous). A deterministic device, whose choices must not depend on what was timed
  // here or earlier, takes cuBLASLt's first heuristic instead, and so does a stream under capture.
  void run(CudaStream& cuda, GemmProblem problem, const GemmArguments& operands);

  // All plans in use, one line each, for a checkpoint; and back, with precedence over what was remembered.
  std::string to_text() const;
  void from_text(const std::string& text);

  struct Entry {
    std::string problem;
    std::string method; // "cublaslt", or the name of a kernel of ours
    float microseconds; // 0: chosen without timing
    bool tuned;         // timed by this process
  };
  std::vector<Entry> entries() const;

 private:
  struct Plan;
  const Plan& plan_for(CudaStream& cuda, const GemmProblem& problem, const GemmArguments& operands);
  std::vector<const GemmKernel*> kernels_for(const GemmProblem& problem) const;
  TuningQuestion question_for(const GemmProblem& problem) const;
  std::optional<TimedMethod> known(const CublasLtGemm& library, const GemmProblem& problem) const;
  std::optional<GemmMethod> method_of(const std::string& choice, const CublasLtGemm& library,
                                      const GemmProblem& problem) const;

  const CudaDevice& device_;
  CublasLt library_;
  TuningStore store_;
  TuningNotes pinned_; // from a checkpoint
  std::vector<std::unique_ptr<const GemmKernel>> kernels_;
  std::map<GemmProblem, std::unique_ptr<Plan>> plans_;
};

} // namespace gpt2
