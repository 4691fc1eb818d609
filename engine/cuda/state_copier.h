// A model's state on its way to host memory while the model goes on: copied on a stream of its own into pinned memory,
// at the speed of the bus. Only the next update, which would change it, waits for that.
//
// 124M parameters with their moments are 1.5 GB: 30 ms at 50 GB/s, beside a forward and backward pass of 600 ms. Into
// pageable memory the same copy takes 150 to 300 ms, and the host waits.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>

#include "kernels/cuda/memory.h"

namespace gpt2 {

class StateCopier {
 public:
  StateCopier(int device, int64_t floats); // begins to pin them, on a thread: that takes seconds where there are many
  ~StateCopier();
  StateCopier(const StateCopier&) = delete;

  // The pinned memory; nothing while an earlier copy in it is still held, or where so much cannot be pinned.
  std::shared_ptr<float> memory();

  // What `compute` has been given so far comes first. Returns what waits until all is there, for any thread.
  struct Piece {
    float* to;
    const float* from;
    int64_t count;
  };
  std::function<void()> copy(cudaStream_t compute, std::span<const Piece> pieces);

  // Before `compute` is given what changes the state.
  void hold(cudaStream_t compute) const;

 private:
  const int device_;
  Stream stream_;
  Event begun_;
  std::shared_ptr<Event> copied_; // of the last copy; none yet: null
  std::future<std::shared_ptr<Pinned<float>>> pinning_;
  std::shared_ptr<Pinned<float>> pinned_;
};

} // namespace gpt2
