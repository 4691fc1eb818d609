// What every GPU test needs: poisoned device buffers, inputs that BF16 holds exactly (so that the CPU reference sees
// the same numbers), and the relative error in norm.
#pragma once

#include <cuda_bf16.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/base/float_formats.h"
#include "engine/base/rng.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/open_device.h"

namespace gpt2 {

// GPT2_TEST_SMALL=1, as run_sanitizer.sh sets it: a sanitizer makes every access many times slower, and finds nothing
// in a large shape that it does not find in a small ragged one.
inline bool small_shapes_only() {
  const char* const value = std::getenv("GPT2_TEST_SMALL");
  return value && *value && std::strcmp(value, "0") != 0;
}

// An environment variable for one scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* const now = std::getenv(name)) before_ = now;
    ::setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() {
    if (before_)
      ::setenv(name_, before_->c_str(), 1);
    else
      ::unsetenv(name_);
  }
  ScopedVariable(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// What a suite is to run of its shapes: all of them, or those with at most 2^18 elements(). A number counts itself.
template <class Shapes>
auto tested(const Shapes& shapes) {
  using Shape = std::decay_t<decltype(*std::begin(shapes))>;
  const auto elements = [](const Shape& shape) {
    if constexpr (std::is_integral_v<Shape>) {
      return static_cast<int64_t>(shape);
    } else {
      return static_cast<int64_t>(shape.elements());
    }
  };
  std::vector<Shape> kept;
  for (const Shape& shape : shapes) {
    if (!small_shapes_only() || elements(shape) <= int64_t{1} << 18) kept.push_back(shape);
  }
  return kept;
}
template <class Shape>
auto tested(std::initializer_list<Shape> shapes) {
  return tested(std::vector<Shape>(shapes));
}

// `count` elements of T on the device between two guards of 256 bytes, all of it 0xFF: NaN as BF16 or float, -1 as an
// integer. What a kernel forgets to write stays NaN; what it writes outside fails download().
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count) : count_(count) {
    CUDA_CHECK(cudaMalloc(&base_, 2 * kGuard + bytes()));
    poison();
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) { upload(values); }
  ~DeviceBuffer() { cudaFree(base_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* get() { return reinterpret_cast<T*>(base_ + kGuard); }
  operator T*() { return get(); }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

  void poison() {
    CUDA_CHECK(cudaMemset(base_, 0xFF, 2 * kGuard + bytes()));
    CUDA_CHECK(cudaDeviceSynchronize()); // the streams of a CudaStream do not wait for the default stream
  }
  void upload(const std::vector<T>& values) {
    REQUIRE(values.size() == count_);
    CUDA_CHECK(cudaMemcpy(get(), values.data(), bytes(), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  std::vector<T> download() const { // waits for all streams
    CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<T> values(count_);
    CUDA_CHECK(cudaMemcpy(values.data(), base_ + kGuard, bytes(), cudaMemcpyDeviceToHost));
    check_guard(base_);
    check_guard(base_ + kGuard + bytes());
    return values;
  }

 private:
  static constexpr size_t kGuard = 256;

  static void check_guard(const std::byte* guard) {
    unsigned char bytes[kGuard];
    CUDA_CHECK(cudaMemcpy(bytes, guard, kGuard, cudaMemcpyDeviceToHost));
    size_t overwritten = 0;
    for (unsigned char byte : bytes) overwritten += byte != 0xFF;
    CHECK_MESSAGE(overwritten == 0, "a kernel wrote outside its output");
  }

  size_t count_;
  std::byte* base_ = nullptr;
};

// Values that BF16 cannot hold: whoever reads them rounded gives himself away.
inline std::vector<float> between_bf16(std::vector<float> values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] *= 1.0f + (i % 2 ? 0.002f : -0.002f);
  return values;
}

inline std::vector<bf16> to_bf16(const std::vector<float>& values) {
  std::vector<bf16> rounded(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t code = bf16_encode(values[i]);
    std::memcpy(static_cast<void*>(&rounded[i]), &code, sizeof(code));
  }
  return rounded;
}

inline std::vector<float> to_float(const std::vector<bf16>& values) {
  std::vector<float> wide(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t code;
    std::memcpy(&code, static_cast<const void*>(&values[i]), sizeof(code));
    wide[i] = bf16_decode(code);
  }
  return wide;
}
inline std::vector<float> to_float(const std::vector<float>& values) { return values; }

template <class T>
std::vector<float> download_floats(const DeviceBuffer<T>& buffer) {
  return to_float(buffer.download());
}

// Normal values, rounded to BF16.
inline std::vector<float> random_values(size_t count, uint64_t seed, float deviation = 1.0f, float mean = 0.0f) {
  const Rng rng(seed);
  std::vector<float> values(count);
#pragma omp parallel for schedule(static)
  for (size_t i = 0; i < count; ++i) {
    values[i] = bf16_decode(bf16_encode(mean + deviation * static_cast<float>(rng.normal(i))));
  }
  return values;
}

// |actual - expected| / |expected| in the Euclidean norm; infinity when a value is NaN or the sizes differ.
inline double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = static_cast<double>(actual[i]) - expected[i];
    difference += d * d;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  const double error = std::sqrt(difference / (norm > 0 ? norm : 1));
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

// Equal bit for bit, so that NaN equals itself and -0 differs from 0.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(static_cast<const void*>(a.data()), static_cast<const void*>(b.data()), a.size() * sizeof(T)) == 0;
}

// A device with the given options, by default without a plan file, and the CPU to compare with.
struct TestDevice {
  explicit TestDevice(const CudaOptions& options = {}) : cuda(open_device(options)) {}
  CudaStream cuda;
  Cpu cpu;
};

} // namespace gpt2
