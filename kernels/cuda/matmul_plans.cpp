#include "kernels/cuda/matmul_plans.h"

#include <algorithm>

namespace gpt2 {
namespace {

const std::string kOwn = "own/"; // before a kernel's name in a choice; cuBLASLt's are hexadecimal

// 256 where every operand is so aligned, 16 where some are less: two plans, because the heuristics may use it. Batches
// are of BF16 matrices.
int alignment_of(const MatmulProduct& product, const MatmulOperands& operands) {
  uintptr_t bits = 0;
  if (product.batch > 1) {
    for (const int64_t elements : {product.m * product.k, product.k * product.n, product.m * product.n})
      bits |= static_cast<uintptr_t>(elements) * sizeof(uint16_t);
  }
  for (const void* pointer : {static_cast<const void*>(operands.d), operands.a, operands.b, operands.c, operands.bias,
                              static_cast<const void*>(operands.aux)}) {
    bits |= reinterpret_cast<uintptr_t>(pointer);
  }
  if (bits % 16 != 0) throw Error(ExitCode::device, "a matrix product's operand is not aligned to 16 bytes");
  return bits % 256 == 0 ? 256 : 16;
}

bool launch(Cuda& cuda, const MatmulProduct& product, const CublasLtProduct& library, const MatmulMethod& method,
            const MatmulOperands& operands) {
  if (const auto* algorithm = std::get_if<CublasLtAlgorithm>(&method)) {
    return library.launch(cuda, *algorithm, operands);
  }
  std::get<const MatmulKernel*>(method)->launch(cuda, product, operands);
  return true;
}

std::string choice_of(const MatmulMethod& method) {
  if (const auto* algorithm = std::get_if<CublasLtAlgorithm>(&method)) return algorithm->to_hex();
  return kOwn + std::get<const MatmulKernel*>(method)->name;
}

} // namespace

struct MatmulPlans::Plan {
  Plan(const CublasLt& handle, const MatmulProduct& product) : library(handle, product) {}
  CublasLtProduct library;
  TimedMethod chosen;
  bool tuned = false;
};

// A deterministic device reads no file: what stands in it was once chosen by timing.
MatmulPlans::MatmulPlans(const CudaDevice& device)
    : device_(device), store_(device.options.deterministic ? "" : device.options.plan_cache) {}

MatmulPlans::~MatmulPlans() = default;

void MatmulPlans::add(const MatmulKernel& kernel) {
  kernels_.push_back(std::make_unique<const MatmulKernel>(kernel));
  plans_.clear(); // chosen without it
}

void MatmulPlans::run(Cuda& cuda, MatmulProduct product, const MatmulOperands& operands) {
  if (product.m == 0 || product.n == 0 || product.k == 0) return;
  product.alignment = alignment_of(product, operands);
  const Plan& plan = plan_for(cuda, product, operands);
  plan.library.bind(operands);
  if (!launch(cuda, product, plan.library, plan.chosen.method, operands)) {
    CUDA_CHECK(cudaGetLastError());
    throw Error(ExitCode::device, "cuBLASLt failed on " + product.name(),
                "delete the plan cache, and check that cuBLASLt and the driver belong to the same CUDA 13");
  }
}

const MatmulPlans::Plan& MatmulPlans::plan_for(Cuda& cuda, const MatmulProduct& product,
                                               const MatmulOperands& operands) {
  const auto found = plans_.find(product);
  if (found != plans_.end()) return *found->second;

  auto plan = std::make_unique<Plan>(library_, product);
  plan->library.bind(operands); // the heuristics look at the alignment of bias and aux
  if (const std::optional<TimedMethod> method = known(plan->library, product)) {
    plan->chosen = *method;
  } else {
    std::vector<MatmulMethod> methods;
    for (const CublasLtAlgorithm& algorithm : plan->library.heuristics()) methods.emplace_back(algorithm);
    plan->chosen.method = methods.front();
    if (!device_.options.deterministic && !cuda.capturing()) {
      for (const MatmulKernel* kernel : kernels_for(product)) methods.emplace_back(kernel);
      const auto fastest = fastest_method(cuda, product, operands, methods,
                                          [&](const MatmulMethod& method, const MatmulOperands& timed) {
                                            return launch(cuda, product, plan->library, method, timed);
                                          });
      if (fastest) {
        plan->chosen = *fastest;
        plan->tuned = true;
        store_.remember(question_for(product), {choice_of(fastest->method), fastest->microseconds});
      }
    }
  }
  return *plans_.emplace(product, std::move(plan)).first->second;
}

std::vector<const MatmulKernel*> MatmulPlans::kernels_for(const MatmulProduct& product) const {
  std::vector<const MatmulKernel*> taking;
  for (const auto& kernel : kernels_) {
    if (kernel->takes(device_, product)) taking.push_back(kernel.get());
  }
  return taking;
}

// The answer depends on who competed: cuBLASLt of this version, and the kernels of ours that take the product.
TuningQuestion MatmulPlans::question_for(const MatmulProduct& product) const {
  std::string competitors = std::to_string(cublaslt_version());
  for (const MatmulKernel* kernel : kernels_for(product)) competitors += '+' + kernel->name;
  return {device_.name, competitors, product.name()};
}

// What the checkpoint says, else what was remembered; in either case something that still computes this product here.
std::optional<TimedMethod> MatmulPlans::known(const CublasLtProduct& library, const MatmulProduct& product) const {
  std::optional<TuningAnswer> answer;
  const auto pinned = pinned_.find({device_.name, std::to_string(cublaslt_version()), product.name()});
  if (pinned != pinned_.end()) {
    answer = pinned->second;
  } else {
    answer = store_.recall(question_for(product));
  }
  if (!answer) return std::nullopt;
  const std::optional<MatmulMethod> method = method_of(answer->choice, library, product);
  if (!method) return std::nullopt;
  return TimedMethod{*method, answer->microseconds};
}

std::optional<MatmulMethod> MatmulPlans::method_of(const std::string& choice, const CublasLtProduct& library,
                                                   const MatmulProduct& product) const {
  for (const MatmulKernel* kernel : kernels_for(product)) {
    if (choice == kOwn + kernel->name) return kernel;
  }
  const std::optional<CublasLtAlgorithm> algorithm = CublasLtAlgorithm::from_hex(choice);
  if (!algorithm || !library.accepts(*algorithm)) return std::nullopt;
  return *algorithm;
}

// A checkpoint's choices hold whoever competes later, so they stand under the library's version alone.
std::string MatmulPlans::to_text() const {
  TuningNotes notes;
  for (const auto& [product, plan] : plans_) {
    notes[{device_.name, std::to_string(cublaslt_version()), product.name()}] = {choice_of(plan->chosen.method),
                                                                                 plan->chosen.microseconds};
  }
  return gpt2::to_text(notes);
}

void MatmulPlans::from_text(const std::string& text) {
  for (const auto& [question, answer] : parse_tuning_notes(text)) pinned_[question] = answer;
  plans_.clear(); // made anew at next use
}

std::vector<MatmulPlans::Entry> MatmulPlans::entries() const {
  std::vector<Entry> entries;
  for (const auto& [product, plan] : plans_) {
    const auto* const* own = std::get_if<const MatmulKernel*>(&plan->chosen.method);
    entries.push_back({product.name(), own ? (*own)->name : "cublaslt", plan->chosen.microseconds, plan->tuned});
  }
  return entries;
}

} // namespace gpt2
