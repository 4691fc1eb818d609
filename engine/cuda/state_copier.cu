#include "engine/cuda/state_copier.h"

#include "engine/base/error.h"

namespace gpt2 {
namespace {

std::shared_ptr<Pinned<float>> pin(int device, int64_t floats) {
  try {
    CUDA_CHECK(cudaSetDevice(device));
    return std::make_shared<Pinned<float>>(static_cast<size_t>(floats));
  } catch (const Error&) { // ulimit -l, or not enough memory
    cudaGetLastError();
    return nullptr;
  }
}

} // namespace

StateCopier::StateCopier(int device, int64_t floats)
    : device_(device), pinning_(std::async(std::launch::async, pin, device, floats)) {}

StateCopier::~StateCopier() {
  cudaStreamSynchronize(stream_.get()); // the copy reads the model's buffers
}

std::shared_ptr<float> StateCopier::memory() {
  if (pinning_.valid()) pinned_ = pinning_.get();
  if (!pinned_ || pinned_.use_count() > 1) return nullptr;
  return {pinned_, pinned_->get()};
}

std::function<void()> StateCopier::copy(cudaStream_t compute, std::span<const Transfer> transfers) {
  begun_.record(compute);
  begun_.hold(stream_.get());
  for (const auto& [to, from, count] : transfers)
    CUDA_CHECK(
        cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(float), cudaMemcpyDeviceToHost, stream_.get()));
  copied_ = std::make_shared<Event>();
  copied_->record(stream_.get());
  return [copied = copied_, device = device_] {
    CUDA_CHECK(cudaSetDevice(device));
    copied->wait();
  };
}

void StateCopier::hold(cudaStream_t compute) const {
  if (copied_) copied_->hold(compute);
}

} // namespace gpt2
