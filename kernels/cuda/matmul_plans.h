// Matrix products, each by the way that was fastest: remembered, or timed the first time the product is met.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/tuning_store.h"
#include "kernels/cuda/matmul_tuner.h"

namespace gpt2 {

class MatmulPlans {
 public:
  explicit MatmulPlans(const CudaDevice& device);
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;

  // A kernel of ours competes from now on for every product that it takes.
  void add(const MatmulKernel& kernel);

  // Enqueues the product. The first time it is met: by the plan of a checkpoint if there is one; else as remembered, or
  // timed (some milliseconds, synchronous). A deterministic device, whose choices must not depend on what was timed
  // here or earlier, takes cuBLASLt's first heuristic instead, and so does a stream under capture.
  void run(Cuda& cuda, MatmulProduct product, const MatmulOperands& operands);

  // All plans in use, one line each, for a checkpoint; and back, with precedence over what was remembered.
  std::string to_text() const;
  void from_text(const std::string& text);

  struct Entry {
    std::string product;
    std::string method; // "cublaslt", or the name of a kernel of ours
    float microseconds; // 0: chosen without timing
    bool tuned;         // timed by this process
  };
  std::vector<Entry> entries() const;

 private:
  struct Plan;
  const Plan& plan_for(Cuda& cuda, const MatmulProduct& product, const MatmulOperands& operands);
  std::vector<const MatmulKernel*> kernels_for(const MatmulProduct& product) const;
  TuningQuestion question_for(const MatmulProduct& product) const;
  std::optional<TimedMethod> known(const CublasLtProduct& library, const MatmulProduct& product) const;
  std::optional<MatmulMethod> method_of(const std::string& choice, const CublasLtProduct& library,
                                        const MatmulProduct& product) const;

  const CudaDevice& device_;
  CublasLt library_;
  TuningStore store_;
  TuningNotes pinned_; // from a checkpoint
  std::vector<std::unique_ptr<const MatmulKernel>> kernels_;
  std::map<MatmulProduct, std::unique_ptr<Plan>> plans_;
};

} // namespace gpt2
