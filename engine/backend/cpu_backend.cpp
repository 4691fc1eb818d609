#include <omp.h>

#include <algorithm>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/base/divisors.h"
#include "engine/cpu/gpt2_cpu.h"
#include "engine/system/address_space.h"
#include "kernels/gemm.h"

namespace gpt2 {
namespace {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const SharingOptions& sharing) : sharing_(sharing) {}

  using Backend::make_model;
  bool is_gpu() const override { return false; }
  std::unique_ptr<Model> make_model(const ModelOptions& options, RankGroup& group) override {
    return make_cpu_model(options, group.alone() ? make_single_communicator() : make_socket_communicator(group),
                          sharing_);
  }
  std::string versions() const override { return "CPU engine"; }

  int choose_batch_size(const ModelOptions& options, int target, int max_batch_size) override {
    const int good = defaults_for(options.config).batch_size; // larger ones cost memory and gain no speed
    return largest_divisor_at_most(target, max_batch_size > 0 ? std::min(good, max_batch_size) : good);
  }
  std::vector<MemoryLine> memory(const ModelOptions& options, int ranks) const override {
    return cpu_model_memory(options, ranks, sharing_);
  }

 private:
  const SharingOptions sharing_;
};

// OpenBLAS maps its buffers at the first large GEMM: run one before the model fills a limited address space (ulimit
// -v).
void run_first_gemm() {
  constexpr int kSize = 128; // OpenBLAS handles smaller sizes without buffers
  const std::vector<float> zeros(kSize * kSize);
  std::vector<float> out(kSize * kSize);
  Cpu cpu;
  gemm_forward(cpu, {.out = out.data(),
                     .in = zeros.data(),
                     .weight = zeros.data(),
                     .bias = nullptr,
                     .rows = kSize,
                     .C = kSize,
                     .OC = kSize});
}

} // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads, const SharingOptions& sharing) {
  require_address_space(threads);
  if (threads > 0) omp_set_num_threads(threads);
  run_first_gemm();
  return std::make_unique<CpuBackend>(sharing);
}

} // namespace gpt2
