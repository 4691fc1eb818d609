// RAII owners of device memory, pinned host memory, streams, events and captured graphs.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <utility>

#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : bytes_(bytes), data_(allocate_device(bytes)) {}
  ~DeviceMemory() { free_device(data_, bytes_); }
  DeviceMemory(const DeviceMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

// Synchronous copies between device and pageable memory, in stream order. Plain cudaMemcpy uses the default stream,
// which non-blocking streams do not wait for.
template <class T>
void copy_to_device(cudaStream_t stream, T* device, std::span<const T> host) {
  CUDA_CHECK(cudaMemcpyAsync(device, host.data(), host.size_bytes(), cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}
template <class T>
void copy_to_host(cudaStream_t stream, std::span<T> host, const T* device) {
  CUDA_CHECK(cudaMemcpyAsync(host.data(), device, host.size_bytes(), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

// Page-locked host memory: asynchronous copies need it.
template <class T>
class Pinned {
 public:
  explicit Pinned(size_t count) { CUDA_CHECK(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(T))); }
  ~Pinned() {
    if (data_) cudaFreeHost(data_);
  }
  Pinned(Pinned&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Pinned& operator=(Pinned&&) = delete;
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

// A non-blocking stream: no implicit order with other streams.
class Stream {
 public:
  Stream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  enum class Kind { plain, timed };
  explicit Event(Kind kind = Kind::plain) {
    CUDA_CHECK(cudaEventCreateWithFlags(&event_, kind == Kind::timed ? cudaEventDefault : cudaEventDisableTiming));
  }
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  void record(cudaStream_t stream) { CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void wait() const { CUDA_CHECK(cudaEventSynchronize(event_)); }
  // Later work on `stream` waits for the event.
  void hold(cudaStream_t stream) const { CUDA_CHECK(cudaStreamWaitEvent(stream, event_)); }
  bool happened() const;
  double seconds_since(const Event& earlier) const; // both timed, both happened

  // For events between captured and eager work: recorded, or waited for, at every graph launch.
  void record_across_graphs(cudaStream_t stream);
  void hold_across_graphs(cudaStream_t stream) const;

 private:
  cudaEvent_t event_ = nullptr;
};

inline bool Event::happened() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status != cudaErrorNotReady) CUDA_CHECK(status);
  return status == cudaSuccess;
}

inline double Event::seconds_since(const Event& earlier) const {
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
  return milliseconds * 1e-3;
}

inline void Event::record_across_graphs(cudaStream_t stream) {
  CUDA_CHECK(cudaEventRecordWithFlags(event_, stream,
                                      is_capturing(stream) ? cudaEventRecordExternal : cudaEventRecordDefault));
}

inline void Event::hold_across_graphs(cudaStream_t stream) const {
  CUDA_CHECK(cudaStreamWaitEvent(stream, event_, is_capturing(stream) ? cudaEventWaitExternal : cudaEventWaitDefault));
}

// A captured CUDA graph. A micro-step has about 300 launches at 124M; the gaps between them would cost about 2%.
class Graph {
 public:
  Graph() = default;
  ~Graph() { reset(); }
  Graph(const Graph&) = delete;
  explicit operator bool() const { return executable_ != nullptr; }
  void reset() {
    if (executable_) cudaGraphExecDestroy(std::exchange(executable_, nullptr));
  }

  template <class Work>
  void capture(cudaStream_t stream, Work&& work) {
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      work();
    } catch (...) { // end the capture, then rethrow
      cudaStreamEndCapture(stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    CUDA_CHECK(status);
  }
  void launch(cudaStream_t stream) const { CUDA_CHECK(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

} // namespace gpt2
