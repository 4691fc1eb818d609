// Opening a device, streams side by side, scratch memory, and what a user reads when CUDA fails.
#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/cuda/memory.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "tests/expect_error.h"
#include "tests/gpu/gpu_test.h"

namespace gpt2 {

TEST_CASE("an opened device has a stream, scratch memory and plans") {
  TestDevice device;
  CHECK(device.cuda.stream != nullptr);
  CHECK(device.cuda.device->multiprocessors > 0);
  CHECK(device.cuda.device->compute_capability >= 80);
  CHECK(device.cuda.device->gemms != nullptr);
  CHECK(device.cuda.device->attentions != nullptr);
  char* scratch = device.cuda.scratch<char>(device.cuda.device->options.scratch_bytes);
  CHECK(reinterpret_cast<uintptr_t>(scratch) % 256 == 0);
  CHECK_NOTHROW(CUDA_CHECK(cudaMemsetAsync(scratch, 1, device.cuda.scratch_bytes, device.cuda.stream)));
  CHECK_NOTHROW(CUDA_CHECK(cudaStreamSynchronize(device.cuda.stream)));
}

TEST_CASE("a stream takes 96 MiB, and shares none of them with another") {
  TestDevice device;
  CHECK(device.cuda.device->options.bytes_per_stream() == size_t{96} << 20);
  CudaStream second(device.cuda.device);
  CHECK(second.device == device.cuda.device);
  CHECK(second.stream != device.cuda.stream);
  CHECK(second.scratch_base != device.cuda.scratch_base);
  CHECK(second.gemm_workspace != device.cuda.gemm_workspace);
}

// Products by cuBLASLt, and operations that keep partial sums and sorted tokens in scratch memory.
TEST_CASE("two streams at once compute what they compute one after another") {
  constexpr int B = 4, T = 256, C = 768, V = 5000;
  const int rounds = small_shapes_only() ? 2 : 20;
  constexpr int64_t kRowCount = int64_t{B} * T;
  CudaOptions options;
  options.deterministic = true; // the same algorithm for the same product, whenever it is first met
  TestDevice device(options);
  CudaStream second(device.cuda.device);

  struct Work {
    explicit Work(uint64_t seed)
        : in(to_bf16(random_values(kRowCount * C, seed))),
          weight(to_bf16(random_values(size_t{C} * C, seed + 1, 0.05f))),
          dout(to_bf16(random_values(kRowCount * C, seed + 2))),
          tokens(static_cast<size_t>(kRowCount)),
          out(static_cast<size_t>(kRowCount) * C),
          dweight(size_t{C} * C),
          dbias(C),
          dwte(size_t{V} * C),
          dwpe(size_t{T} * C) {
      std::vector<int32_t> ids(static_cast<size_t>(kRowCount));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(Rng(seed).bits(i) % 97 * 51 % V);
      tokens.upload(ids);
    }
    void clear() {
      out.poison();
      for (DeviceBuffer<float>* sums : {&dweight, &dbias, &dwte, &dwpe}) {
        sums->upload(std::vector<float>(sums->size(), 0.0f));
      }
    }
    void run(CudaStream& cuda) {
      gemm_forward(cuda, GemmForward<bf16>{out, in, weight, nullptr, kRowCount, C, C});
      gemm_backward_weight(cuda, GemmBackwardWeight<bf16>{dweight, dout, in, kRowCount, C, C});
      bias_backward(cuda, BiasBackward<bf16>{dbias, dout, kRowCount, C});
      embedding_backward(cuda, EmbeddingBackward<bf16>{dwte, dwpe, dout, tokens, B, T, C, V});
    }
    std::vector<std::vector<float>> results() const {
      return {download_floats(out), dweight.download(), dbias.download(), dwte.download(), dwpe.download()};
    }
    DeviceBuffer<bf16> in, weight, dout;
    DeviceBuffer<int32_t> tokens;
    DeviceBuffer<bf16> out;
    DeviceBuffer<float> dweight, dbias, dwte, dwpe;
  };
  Work a(1), b(100);
  std::vector<std::vector<std::vector<float>>> alone;
  for (Work* work : {&a, &b}) {
    work->clear();
    for (int round = 0; round < rounds; ++round) work->run(device.cuda);
    alone.push_back(work->results());
    work->clear();
  }
  for (int round = 0; round < rounds; ++round) {
    a.run(device.cuda);
    b.run(second);
  }
  const auto together_a = a.results(), together_b = b.results();
  for (size_t i = 0; i < alone[0].size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(together_a[i], alone[0][i]));
    CHECK(same_bits(together_b[i], alone[1][i]));
  }
}

TEST_CASE("attention on two streams has a workspace on each") {
  TestDevice device;
  CudaStream second(device.cuda.device);
  constexpr int B = 4, T = 256, NH = 4, HS = 64, C = NH * HS;
  constexpr size_t kSize = size_t{B} * T * C;
  DeviceBuffer<bf16> qkv(to_bf16(random_values(3 * kSize, 1))), out(kSize), out_second(kSize);
  DeviceBuffer<float> stats(size_t{B} * T * NH), stats_second(size_t{B} * T * NH);
  attention_forward(device.cuda, AttentionForward<bf16>{out, stats, qkv, B, T, NH, HS});
  attention_forward(second, AttentionForward<bf16>{out_second, stats_second, qkv, B, T, NH, HS});
  CHECK(same_bits(out.download(), out_second.download()));
  CHECK(same_bits(stats.download(), stats_second.download()));
  const size_t held = device.cuda.attention_workspace_bytes();
  CHECK(second.attention_workspace_bytes() == held);
}

TEST_CASE("more scratch than there is throws, and says how much was asked for") {
  CudaOptions options;
  options.scratch_bytes = 40u << 20;
  TestDevice device(options);
  CHECK_NOTHROW(device.cuda.scratch<float>(10u << 20));
  const Error error = expect_error([&] { device.cuda.scratch<float>(15u << 20); });
  CHECK(error.code() == ExitCode::device);
  CHECK(mentions(error, "60 MiB"));
}

TEST_CASE("this program has code for its GPU, and says how to build it for another") {
  CHECK_NOTHROW(require_device_code(0));
  CHECK(rebuild_hint(80) == "run: make ARCHS=80-real");
  CHECK(rebuild_hint(90) == "run: make ARCHS=90a-real");
  const Error error =
      expect_error([] { cuda_check(cudaErrorNoKernelImageForDevice, "a launch", "kernels/any.cu", 1); });
  CHECK(error.code() == ExitCode::device);
  CHECK(error.hint().find("make ARCHS=") != std::string::npos);
}

TEST_CASE("a device that is not there is refused by its number") {
  for (int index : {-1, 4096}) {
    CudaOptions options;
    options.device = index;
    const Error error = expect_error([&] { CudaStream cuda(open_device(options)); });
    CHECK(error.code() == ExitCode::device);
    CHECK(mentions(error, std::to_string(index)));
    CHECK(error.hint().find("CUDA_VISIBLE_DEVICES") != std::string::npos);
  }
}

TEST_CASE("out of memory hints at the batch size and leaves the device usable") {
  TestDevice device;
  void* pointer = nullptr;
  const Error error = expect_error([&] { CUDA_CHECK(cudaMalloc(&pointer, size_t{1} << 50)); });
  CHECK(error.code() == ExitCode::device);
  CHECK(mentions(error, "cudaErrorMemoryAllocation"));
  CHECK(mentions(error, "test_cuda_backend.cpp"));
  CHECK(error.hint().find("--batch_size") != std::string::npos);
  cudaGetLastError(); // of this program's copy of the runtime; the library has cleared its own
  DeviceBuffer<float> buffer(std::vector<float>{1, 2, 3});
  CHECK(buffer.download() == std::vector<float>{1, 2, 3});
}

TEST_CASE("a memory limit bounds what is allocated and what counts as free") {
  TestDevice device;
  size_t free_before = 0, free = 0, total = 0;
  CUDA_CHECK(device_memory_info(&free_before, &total));
  const size_t held = device.cuda.device->options.bytes_per_stream();
  limit_device_memory(held + (64u << 20));
  CUDA_CHECK(device_memory_info(&free, &total));
  CHECK(total == held + (64u << 20));
  CHECK(free == 64u << 20);
  {
    const DeviceMemory most(60u << 20);
    const Error error = expect_error([] { DeviceMemory(8u << 20); });
    CHECK(error.code() == ExitCode::device);
    CHECK(mentions(error, "--memory_limit"));
  }
  CHECK_NOTHROW(DeviceMemory(60u << 20)); // freed memory counts as free
  limit_device_memory(0);
  CUDA_CHECK(device_memory_info(&free, &total));
  CHECK(free > free_before / 2);
}

TEST_CASE("shared memory beyond the device's is refused, also where a test lowers it") {
  constexpr int B = 1, T = 64, NH = 1, HS = 128; // its tiles need 87 KB
  CudaOptions own;
  own.attention = AttentionKind::handwritten;
  own.kernels = KernelChoice::general;
  const ScopedVariable limit("GPT2_SHARED_MEMORY_LIMIT", "64"); // KiB
  TestDevice device(own);
  CHECK(device.cuda.device->shared_memory_per_block == 64 * 1024);
  CHECK_FALSE(device.cuda.device->sm90_kernels);
  DeviceBuffer<bf16> qkv(to_bf16(random_values(3 * T * HS, 1))), out(T * HS);
  DeviceBuffer<float> stats(T);
  const Error error = expect_error([&] {
    attention_forward(device.cuda, AttentionForward<bf16>{out, stats, qkv, B, T, NH, HS});
  });
  CHECK(error.code() == ExitCode::device);
  CHECK(mentions(error, "KiB of shared memory"));
}

TEST_CASE("scratch that does not fit fails cleanly") {
  CudaOptions options;
  options.scratch_bytes = size_t{1} << 50;
  CHECK(expect_error([&] { CudaStream cuda(open_device(options)); }).code() == ExitCode::device);
  TestDevice device; // nothing is left behind that hinders the next
  CHECK(device.cuda.stream != nullptr);
}

} // namespace gpt2
