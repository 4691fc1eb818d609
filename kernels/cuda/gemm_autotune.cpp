#include "kernels/cuda/gemm_autotune.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/memory.h"

namespace gpt2 {
namespace {

constexpr float kDropBeyond = 1.2f; // slower methods are timed once
constexpr int kRounds = 3;          // further rounds for the others
constexpr float kNever = std::numeric_limits<float>::infinity();

// Microseconds per run; infinity if the method does not run.
float time(CudaStream& cuda, int repeats, const std::function<bool()>& run) {
  Event start(Event::Kind::timed), stop(Event::Kind::timed);
  start.record(cuda.stream);
  for (int i = 0; i < repeats; ++i) {
    if (!run()) return kNever;
  }
  stop.record(cuda.stream);
  stop.wait();
  return static_cast<float>(1e6 * stop.seconds_since(start) / repeats);
}

// Short runs are repeated, and each round covers all candidates, so that clock drift favors none.
TimedMethod time_methods(CudaStream& cuda, std::span<const GemmMethod> methods, const GemmArguments& operands,
                         const GemmLaunch& launch) {
  std::vector<TimedMethod> timed;
  float best = kNever;
  for (const GemmMethod& method : methods) {
    const auto run = [&] { return launch(method, operands); };
    time(cuda, 1, run); // loads the kernel
    timed.push_back({method, time(cuda, 1, run)});
    best = std::min(best, timed.back().microseconds);
  }
  const int repeats = std::clamp(static_cast<int>(200 / best), 1, 20); // short kernels are timed for 0.2 ms
  for (int round = 0; round < kRounds; ++round) {
    for (TimedMethod& candidate : timed) {
      if (!(candidate.microseconds <= kDropBeyond * best) || best == kNever) continue;
      const float microseconds = time(cuda, repeats, [&] { return launch(candidate.method, operands); });
      candidate.microseconds = std::min(candidate.microseconds, microseconds);
      best = std::min(best, microseconds);
    }
  }
  return *std::min_element(timed.begin(), timed.end(),
                           [](const TimedMethod& x, const TimedMethod& y) { return x.microseconds < y.microseconds; });
}

} // namespace

std::optional<TimedMethod> autotune(CudaStream& cuda, const GemmProblem& problem, const GemmArguments& operands,
                                    std::span<const GemmMethod> methods, const GemmLaunch& launch) {
  std::optional<DeviceMemory> copy;
  GemmArguments timed = operands;
  if (problem.accumulate) {
    try {
      timed.d = copy.emplace(problem.output_bytes()).data();
    } catch (const Error&) { // no memory left: not timed
      return std::nullopt;
    }
    CUDA_CHECK(cudaMemsetAsync(timed.d, 0, problem.output_bytes(), cuda.stream));
  }
  const TimedMethod fastest = time_methods(cuda, methods, timed, launch);
  if (fastest.microseconds == kNever) return std::nullopt;
  return fastest;
}

} // namespace gpt2
