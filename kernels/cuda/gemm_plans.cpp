#include "kernels/cuda/gemm_plans.h"

#include <algorithm>

namespace gpt2 {
namespace {

const std::string kOurPrefix = "own/"; // prefix of our kernels in stored plans; cuBLASLt's are hexadecimal

// 256 if every operand is aligned to 256 bytes, else 16. Separate plans: the heuristics depend on it. Batched problems
// are BF16.
int alignment_of(const GemmProblem& problem, const GemmArguments& operands) {
  uintptr_t bits = 0;
  if (problem.batch > 1) {
    for (const int64_t elements : {problem.m * problem.k, problem.k * problem.n, problem.m * problem.n})
      bits |= static_cast<uintptr_t>(elements) * sizeof(uint16_t);
  }
  for (const void* pointer : {static_cast<const void*>(operands.d), operands.a, operands.b, operands.c, operands.bias,
                              static_cast<const void*>(operands.aux)}) {
    bits |= reinterpret_cast<uintptr_t>(pointer);
  }
  if (bits % 16 != 0) throw Error(ExitCode::device, "a GEMM operand is not aligned to 16 bytes");
  return bits % 256 == 0 ? 256 : 16;
}

bool launch(CudaStream& cuda, const GemmProblem& problem, const CublasLtGemm& library, const GemmMethod& method,
            const GemmArguments& operands) {
  if (const auto* algorithm = std::get_if<CublasLtAlgorithm>(&method)) {
    return library.launch(cuda, *algorithm, operands);
  }
  std::get<const GemmKernel*>(method)->launch(cuda, problem, operands);
  return true;
}

std::string choice_of(const GemmMethod& method) {
  if (const auto* algorithm = std::get_if<CublasLtAlgorithm>(&method)) return algorithm->to_hex();
  return kOurPrefix + std::get<const GemmKernel*>(method)->name;
}

} // namespace

struct GemmPlans::Plan {
  Plan(const CublasLt& handle, const GemmProblem& problem) : library(handle, problem) {}
  CublasLtGemm library;
  TimedMethod chosen;
  bool tuned = false;
};

// A deterministic device does not read the plan cache: its entries were chosen by timing.
GemmPlans::GemmPlans(const CudaDevice& device)
    : device_(device), store_(device.options.deterministic ? "" : device.options.plan_cache) {}

GemmPlans::~GemmPlans() = default;

void GemmPlans::add(const GemmKernel& kernel) {
  kernels_.push_back(std::make_unique<const GemmKernel>(kernel));
  plans_.clear(); // they were chosen without this kernel
}

void GemmPlans::run(CudaStream& cuda, GemmProblem problem, const GemmArguments& operands) {
  if (problem.m == 0 || problem.n == 0 || problem.k == 0) return;
  problem.alignment = alignment_of(problem, operands);
  const Plan& plan = plan_for(cuda, problem, operands);
  plan.library.bind(operands);
  if (!launch(cuda, problem, plan.library, plan.chosen.method, operands)) {
    CUDA_CHECK(cudaGetLastError());
    throw Error(ExitCode::device, "cuBLASLt failed on " + problem.name(),
                "delete the plan cache, and check that cuBLASLt and the driver belong to the same CUDA 13");
  }
}

const GemmPlans::Plan& GemmPlans::plan_for(CudaStream& cuda, const GemmProblem& problem,
                                           const GemmArguments& operands) {
  const auto found = plans_.find(problem);
  if (found != plans_.end()) return *found->second;

  auto plan = std::make_unique<Plan>(library_, problem);
  plan->library.bind(operands); // the heuristics depend on the alignment of bias and aux
  if (const std::optional<TimedMethod> method = known(plan->library, problem)) {
    plan->chosen = *method;
  } else {
    std::vector<GemmMethod> methods;
    for (const CublasLtAlgorithm& algorithm : plan->library.heuristics()) methods.emplace_back(algorithm);
    plan->chosen.method = methods.front();
    if (!device_.options.deterministic && !cuda.capturing()) {
      for (const GemmKernel* kernel : kernels_for(problem)) methods.emplace_back(kernel);
      const auto fastest =
          autotune(cuda, problem, operands, methods, [&](const GemmMethod& method, const GemmArguments& timed) {
            return launch(cuda, problem, plan->library, method, timed);
          });
      if (fastest) {
        plan->chosen = *fastest;
        plan->tuned = true;
        store_.remember(question_for(problem), {choice_of(fastest->method), fastest->microseconds});
      }
    }
  }
  return *plans_.emplace(problem, std::move(plan)).first->second;
}

std::vector<const GemmKernel*> GemmPlans::kernels_for(const GemmProblem& problem) const {
  std::vector<const GemmKernel*> taking;
  for (const auto& kernel : kernels_) {
    if (kernel->can_implement(device_, problem)) taking.push_back(kernel.get());
  }
  return taking;
}

// The key names all candidates: cuBLASLt's version and our kernels that can implement the problem.
TuningKey GemmPlans::question_for(const GemmProblem& problem) const {
  std::string competitors = std::to_string(cublaslt_version());
  for (const GemmKernel* kernel : kernels_for(problem)) competitors += '+' + kernel->name;
  return {device_.name, competitors, problem.name()};
}

// From the checkpoint, else from the plan cache, if this device can still run it.
std::optional<TimedMethod> GemmPlans::known(const CublasLtGemm& library, const GemmProblem& problem) const {
  std::optional<TuningEntry> answer;
  const auto pinned = pinned_.find({device_.name, std::to_string(cublaslt_version()), problem.name()});
  if (pinned != pinned_.end()) {
    answer = pinned->second;
  } else {
    answer = store_.recall(question_for(problem));
  }
  if (!answer) return std::nullopt;
  const std::optional<GemmMethod> method = method_of(answer->choice, library, problem);
  if (!method) return std::nullopt;
  return TimedMethod{*method, answer->microseconds};
}

std::optional<GemmMethod> GemmPlans::method_of(const std::string& choice, const CublasLtGemm& library,
                                               const GemmProblem& problem) const {
  for (const GemmKernel* kernel : kernels_for(problem)) {
    if (choice == kOurPrefix + kernel->name) return kernel;
  }
  const std::optional<CublasLtAlgorithm> algorithm = CublasLtAlgorithm::from_hex(choice);
  if (!algorithm || !library.accepts(*algorithm)) return std::nullopt;
  return *algorithm;
}

// A checkpoint's plans stay valid when candidates are added: their key has cuBLASLt's version only.
std::string GemmPlans::to_text() const {
  TuningTable notes;
  for (const auto& [problem, plan] : plans_) {
    notes[{device_.name, std::to_string(cublaslt_version()), problem.name()}] = {choice_of(plan->chosen.method),
                                                                                 plan->chosen.microseconds};
  }
  return gpt2::to_text(notes);
}

void GemmPlans::from_text(const std::string& text) {
  for (const auto& [question, answer] : parse_tuning_table(text)) pinned_[question] = answer;
  plans_.clear(); // rebuilt at next use
}

std::vector<GemmPlans::Entry> GemmPlans::entries() const {
  std::vector<Entry> entries;
  for (const auto& [problem, plan] : plans_) {
    const auto* const* own = std::get_if<const GemmKernel*>(&plan->chosen.method);
    entries.push_back({problem.name(), own ? (*own)->name : "cublaslt", plan->chosen.microseconds, plan->tuned});
  }
  return entries;
}

} // namespace gpt2
