#include "tools/doctor/gpu_health.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>

#include "engine/base/rng.h"
#include "engine/cuda/gpt2_cuda_model.h"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/open_device.h"
#include "kernels/cuda/profile.h"
#include "kernels/gemm.h"
#include "kernels/gemm_fp8.h"

namespace gpt2 {

namespace {

template <class T>
class OnDevice {
 public:
  OnDevice(CudaStream& cuda, const std::vector<T>& values)
      : cuda_(cuda), count_(values.size()), memory_(values.size() * sizeof(T)) {
    copy_to_device(cuda.stream, get(), std::span<const T>(values));
  }
  T* get() const { return reinterpret_cast<T*>(memory_.data()); }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    copy_to_host(cuda_.stream, std::span<T>(values), static_cast<const T*>(get()));
    return values;
  }

 private:
  CudaStream& cuda_;
  size_t count_;
  DeviceMemory memory_;
};

// ---- FP8 GEMM accuracy ----

// (rows, cols) in FP8, row-major and transposed, and the values in double.
struct Fp8Matrix {
  Fp8Matrix(CudaStream& cuda, int rows, int cols, Fp8Format format, uint64_t seed)
      : rows(rows),
        cols(cols),
        format(format),
        values(static_cast<size_t>(rows) * cols),
        meta(cuda, {{.scale_inv = 1 / scale_of(format), .scale = scale_of(format), .saturated = 0, .flushed = 0}}),
        data(cuda, encode(seed)),
        transposed(cuda, transpose(data.read())) {}

  static float scale_of(Fp8Format format) { return fp8_max(format) / 5; } // normal values: a few saturate
  Fp8Tensor tensor() const { return {data.get(), format, meta.get()}; }
  Fp8Tensor tensor_t() const { return {transposed.get(), format, meta.get()}; }

  std::vector<uint8_t> encode(uint64_t seed) {
    const Rng rng(seed);
    std::vector<uint8_t> out(values.size());
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = fp8_encode(static_cast<float>(rng.normal(i)) * scale_of(format), format);
      values[i] = static_cast<double>(fp8_decode(out[i], format)) / scale_of(format);
    }
    return out;
  }
  std::vector<uint8_t> transpose(const std::vector<uint8_t>& in) const {
    std::vector<uint8_t> out(in.size());
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r)
      for (size_t c = 0; c < static_cast<size_t>(cols); ++c) out[c * rows + r] = in[r * cols + c];
    return out;
  }

  int rows, cols;
  Fp8Format format;
  std::vector<double> values;
  OnDevice<Fp8TensorMeta> meta;
  OnDevice<uint8_t> data, transposed;
};

// (m, n): sum over k of a(i, k) b(k, j).
template <class A, class B>
std::vector<double> reference_gemm(int m, int n, int k, const A& a, const B& b) {
  std::vector<double> out(static_cast<size_t>(m) * n);
  for (int i = 0; i < m; ++i)
    for (int x = 0; x < k; ++x)
      for (int j = 0; j < n; ++j) out[static_cast<size_t>(i) * n + j] += a(i, x) * b(x, j);
  return out;
}

template <class T>
double relative_error(const std::vector<T>& actual, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = static_cast<double>(static_cast<float>(actual[i])) - expected[i];
    difference += error * error;
    norm += expected[i] * expected[i];
  }
  const double relative = std::sqrt(difference / norm);
  return std::isfinite(relative) ? relative : INFINITY;
}

CudaOptions untuned_options(int device) { // the first plan, without timing
  CudaOptions options;
  options.device = device;
  options.deterministic = true;
  return options;
}

// ---- GEMM and copy rates ----

constexpr int kRateSize = 8192;

// Random values, 2^20 of them repeated: zeros would draw less power and run faster than training does.
template <class T, class Make>
OnDevice<T> filled(CudaStream& cuda, const Make& make) {
  constexpr size_t kTile = size_t{1} << 20, kCount = size_t{kRateSize} * kRateSize;
  std::vector<T> values(kCount);
  for (size_t i = 0; i < kTile; ++i) values[i] = make(i);
  for (size_t at = kTile; at < kCount; at += kTile) std::copy_n(values.begin(), kTile, values.begin() + at);
  return {cuda, values};
}

template <class Work>
double seconds_of(CudaStream& cuda, const Work& work) { // the mean of ten after three warm-ups
  constexpr int kWarm = 3, kTimed = 10;
  Event begin(Event::Kind::timed), end(Event::Kind::timed);
  for (int i = 0; i < kWarm + kTimed; ++i) {
    if (i == kWarm) begin.record(cuda.stream);
    work();
  }
  end.record(cuda.stream);
  end.wait();
  return end.seconds_since(begin) / kTimed;
}

double copy_rate(CudaStream& cuda) {
  constexpr size_t kBytes = size_t{1} << 30;
  const DeviceMemory from(kBytes), to(kBytes);
  const double seconds = seconds_of(cuda, [&] {
    CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, cuda.stream));
  });
  return 2.0 * kBytes / seconds / 1e9;
}

constexpr double kRateFlops = 2.0 * kRateSize * kRateSize * kRateSize;

double bf16_rate(CudaStream& cuda) {
  const Rng rng(1);
  const auto value = [&](size_t i) { return __float2bfloat16(static_cast<float>(rng.normal(i))); };
  const OnDevice<bf16> in = filled<bf16>(cuda, value), weight = filled<bf16>(cuda, value);
  const DeviceMemory out(size_t{kRateSize} * kRateSize * sizeof(bf16));
  return kRateFlops / 1e12 / seconds_of(cuda, [&] {
           gemm_forward(cuda, GemmForward<bf16>{.out = reinterpret_cast<bf16*>(out.data()),
                                                .in = in.get(),
                                                .weight = weight.get(),
                                                .bias = nullptr,
                                                .rows = kRateSize,
                                                .C = kRateSize,
                                                .OC = kRateSize});
         });
}

double fp8_rate(CudaStream& cuda) {
  const Rng rng(2);
  const auto value = [&](size_t i) { return fp8_encode(static_cast<float>(64 * rng.normal(i)), Fp8Format::e4m3); };
  const OnDevice<uint8_t> in = filled<uint8_t>(cuda, value), weight = filled<uint8_t>(cuda, value);
  const OnDevice<Fp8TensorMeta> meta(cuda, {{.scale_inv = 1.0f / 64, .scale = 64, .saturated = 0, .flushed = 0}});
  const DeviceMemory out(size_t{kRateSize} * kRateSize * sizeof(bf16));
  return kRateFlops / 1e12 / seconds_of(cuda, [&] {
           gemm_forward_fp8(cuda, {.out = reinterpret_cast<bf16*>(out.data()),
                                   .in = {in.get(), Fp8Format::e4m3, meta.get()},
                                   .weight = {weight.get(), Fp8Format::e4m3, meta.get()},
                                   .bias = nullptr,
                                   .rows = kRateSize,
                                   .C = kRateSize,
                                   .OC = kRateSize});
         });
}

} // namespace

double fp8_gemm_error(int device) {
  constexpr int R = 128, C = 768, OC = 256;
  CudaStream cuda(open_device(untuned_options(device)));
  const Fp8Matrix in(cuda, R, C, Fp8Format::e4m3, 1), weight(cuda, OC, C, Fp8Format::e4m3, 2),
      dout(cuda, R, OC, Fp8Format::e5m2, 3);
  const auto at = [](const Fp8Matrix& m, int row, int col) {
    return m.values[static_cast<size_t>(row) * m.cols + col];
  };

  const OnDevice<bf16> out(cuda, std::vector<bf16>(R * OC)), din(cuda, std::vector<bf16>(R * C));
  const OnDevice<float> dweight(cuda, std::vector<float>(OC * C));
  gemm_forward_fp8(
      cuda,
      {.out = out.get(), .in = in.tensor(), .weight = weight.tensor(), .bias = nullptr, .rows = R, .C = C, .OC = OC});
  gemm_backward_input_fp8(
      cuda, {.din = din.get(), .dout = dout.tensor(), .weight_t = weight.tensor_t(), .rows = R, .C = C, .OC = OC});
  gemm_backward_weight_fp8(
      cuda, {.dweight = dweight.get(), .dout_t = dout.tensor_t(), .in_t = in.tensor_t(), .rows = R, .C = C, .OC = OC});
  const double forward = relative_error(out.read(), reference_gemm(
                                                        R, OC, C, [&](int r, int c) { return at(in, r, c); },
                                                        [&](int c, int o) { return at(weight, o, c); }));
  const double input = relative_error(din.read(), reference_gemm(
                                                      R, C, OC, [&](int r, int o) { return at(dout, r, o); },
                                                      [&](int o, int c) { return at(weight, o, c); }));
  const double gradient = relative_error(dweight.read(), reference_gemm(
                                                             OC, C, R, [&](int o, int r) { return at(dout, r, o); },
                                                             [&](int r, int c) { return at(in, r, c); }));
  return std::max({forward, input, gradient});
}

GpuRates measure_gpu_rates(int device) {
  CudaOptions options;
  options.device = device;
  CudaStream cuda(open_device(options));
  GpuRates rates;
  rates.copy_gb_per_s = copy_rate(cuda);
  rates.bf16_tflops = bf16_rate(cuda);
  if (cuda.device->compute_capability >= 90) rates.fp8_tflops = fp8_rate(cuda);
  rates.under_load = gpu_condition(device);
  return rates;
}

GpuCondition gpu_condition(int device) {
  char id[32] = "";
  CUDA_CHECK(cudaDeviceGetPCIBusId(id, sizeof id, device));
  return Nvml(id).condition();
}

std::string cudnn_version(int device) {
  const CudaStream cuda(open_device(untuned_options(device)));
  return cuda.device->attentions->version();
}

Fp8Share measure_fp8_share(Model& model, const Batch& batch) {
  CudaStream& cuda = dynamic_cast<GPT2Cuda&>(model).backend();
  Profile profile(cuda.stream);
  cuda.profile = &profile;
  model.micro_step(batch, 0, 1);
  model.update(UpdateSettings{}); // learning rate 0
  model.step_result();
  cuda.profile = nullptr;
  OperationTime all, fp8;
  for (const OperationTime& operation : profile.results()) {
    all.ms += operation.ms;
    all.flops += operation.flops;
    if (!operation.name.starts_with("gemm_") || !operation.name.ends_with("_fp8")) continue;
    fp8.ms += operation.ms;
    fp8.flops += operation.flops;
  }
  return {.flops = fp8.flops / all.flops, .time = fp8.ms / all.ms};
}

} // namespace gpt2
