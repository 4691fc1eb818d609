// Opening a device, its scratch memory, and what a user reads when CUDA fails.
#include "tests/expect_error.h"
#include "tests/gpu/gpu_test.h"

namespace gpt2 {

TEST_CASE("an opened device has a stream, scratch memory and plans") {
  TestDevice device;
  CHECK(device.cuda.stream != nullptr);
  CHECK(device.cuda.multiprocessors > 0);
  CHECK(device.cuda.compute_capability >= 80);
  CHECK(device.cuda.matmuls != nullptr);
  CHECK(device.cuda.attentions != nullptr);
  char* scratch = device.cuda.scratch<char>(device.cuda.options.scratch_bytes);
  CHECK(reinterpret_cast<uintptr_t>(scratch) % 256 == 0);
  CHECK_NOTHROW(CUDA_CHECK(cudaMemsetAsync(scratch, 1, device.cuda.scratch_bytes, device.cuda.stream)));
  CHECK_NOTHROW(CUDA_CHECK(cudaStreamSynchronize(device.cuda.stream)));
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
    const Error error = expect_error([&] { Cuda cuda(options); });
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
  CHECK(cudaGetLastError() == cudaSuccess);
  DeviceBuffer<float> buffer(std::vector<float>{1, 2, 3});
  CHECK(buffer.download() == std::vector<float>{1, 2, 3});
}

TEST_CASE("scratch that does not fit fails cleanly") {
  CudaOptions options;
  options.scratch_bytes = size_t{1} << 50;
  CHECK(expect_error([&] { Cuda cuda(options); }).code() == ExitCode::device);
  TestDevice device; // nothing is left behind that hinders the next
  CHECK(device.cuda.stream != nullptr);
}

} // namespace gpt2
