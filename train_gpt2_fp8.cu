// The program: options -> backend -> trainer.run(). Compiled by nvcc, or as plain C++ where there is no CUDA.
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <string>

#include "engine/base/error.h"        // defines: Error, ExitCode
#include "engine/base/log.h"          // defines: is_terminal
#include "engine/base/process.h"      // defines: prepare_process
#include "engine/dist/communicator.h" // defines: make_communicator
#include "engine/train/backend.h"     // defines: Backend, choose_device
#include "engine/train/options.h"     // defines: parse_options
#include "engine/train/run_start.h"   // defines: prepare_start (--resume), describe_checkpoints
#include "engine/train/trainer.h"     // defines: Trainer
#ifdef GPT2_WITH_CUDA
#include "engine/model/gpt2_cuda.h"   // defines: probe_cuda_device, fp8_refusal, make_cuda_model
#include "engine/train/light_speed.h" // defines: hopper_light_speed
#endif

namespace {

using namespace gpt2;

#ifdef GPT2_WITH_CUDA
std::string expand_home(const std::string& path) {
  const char* home = std::getenv("HOME");
  return path.rfind("~/", 0) == 0 && home ? home + path.substr(1) : path;
}

class CudaBackend : public Backend {
 public:
  CudaBackend(const Options& o, const GpuReport& gpu)
      : hopper_(gpu.compute_capability == 90),
        options_{o.deterministic, o.cuda_graph, o.recompute, o.attention, expand_home(o.plan_cache)} {}

  bool is_gpu() const override { return true; }
  std::unique_ptr<Model> make_model(const ModelOptions& model) override { return make_cuda_model(model, options_); }
  int choose_batch_size(const ModelOptions& model, int target, int max_batch_size) override {
    return choose_cuda_batch_size(model, options_, target, max_batch_size > 0 ? max_batch_size : target);
  }
  std::optional<double> light_speed(const ModelOptions& model) const override {
    if (!hopper_) return std::nullopt;
    return hopper_light_speed(model.config, model.seq_len, model.precision);
  }

 private:
  bool hopper_;
  CudaModelOptions options_;
};

GpuReport find_gpu(const Options& options) {
  const CudaDeviceInfo found = probe_cuda_device();
  const bool try_fp8 = found.usable && options.precision == "fp8" && found.compute_capability >= kFp8ComputeCapability;
  return {found.usable, found.why_not, found.name, found.compute_capability, try_fp8 ? fp8_refusal() : ""};
}

std::unique_ptr<Backend> make_gpu_backend(const Options& options, const GpuReport& gpu) {
  return std::make_unique<CudaBackend>(options, gpu);
}

std::string version() {
  return "train_gpt2_fp8 " GPT2_VERSION ", CUDA " + std::to_string(CUDART_VERSION / 1000) + "." +
         std::to_string(CUDART_VERSION / 10 % 100);
}
#else
GpuReport find_gpu(const Options&) { return {}; }
std::unique_ptr<Backend> make_gpu_backend(const Options&, const GpuReport&) { return nullptr; }
std::string version() { return "train_gpt2_fp8 " GPT2_VERSION ", CPU only"; }
#endif

ExitCode print(const std::string& text) {
  std::cout << text << std::flush;
  if (!std::cout)
    throw Error(ExitCode::disk, "standard output cannot be written", "free some space, or print elsewhere");
  return ExitCode::done;
}

ExitCode run(int argc, char** argv) {
  const auto command_line = parse_options(argc, argv, version());
  if (!command_line) return ExitCode::done;
  if (command_line->options.print_config) {
    return print(to_toml(command_line->options));
  }
  if (command_line->options.list_checkpoints) {
    return print(describe_checkpoints(command_line->options.checkpoint_dir));
  }

  const auto communicator = make_communicator();
  const RunStart start = prepare_start(*command_line);
  const GpuReport gpu = start.options.device == "cpu" ? GpuReport{} : find_gpu(start.options);
  const DeviceChoice device = choose_device(start.options, gpu);
  const auto backend = device.gpu ? make_gpu_backend(start.options, gpu) : make_cpu_backend(start.options.threads);

  Console console(std::cout, is_terminal());
  Trainer trainer(start, device, *backend, *communicator, console);
  return trainer.run();
}

} // namespace

int main(int argc, char** argv) {
  prepare_process();
  try {
    return static_cast<int>(run(argc, argv));
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << (error.hint().empty() ? "" : " (" + error.hint() + ")") << "\n";
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::cerr << "error: out of memory (use a smaller --batch_size or --model)\n";
    return static_cast<int>(ExitCode::device);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << " (this is a bug: please report it with the command line)\n";
    return 1;
  }
}
