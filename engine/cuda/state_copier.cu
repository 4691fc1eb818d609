#include "engine/cuda/state_copier.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/error.h"
#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

PinnedPieces::PinnedPieces(int64_t floats, const std::atomic<bool>& abandoned)
    : bytes_(static_cast<size_t>(floats) * sizeof(float)) {
  void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(ExitCode::device, "no host memory for copies: " + std::string(strerror(errno)));
  data_ = static_cast<float*>(memory);
  madvise(memory, bytes_, MADV_HUGEPAGE); // fewer pages to pin; not everywhere, and no matter
  madvise(memory, bytes_, MADV_DONTFORK); // a child's copy-on-write would part our pages from the device's
  for (int64_t first = 0; first < floats && !abandoned; first += kPiece, ++pinned_) {
    const size_t size = static_cast<size_t>(std::min(kPiece, floats - first)) * sizeof(float);
    std::memset(data_ + first, 0, size); // here, so that the driver finds pages that are there
    const cudaError_t error = cudaHostRegister(data_ + first, size, cudaHostRegisterDefault);
    if (error != cudaSuccess) {
      release();
      CUDA_CHECK(error);
    }
  }
}

PinnedPieces::~PinnedPieces() { release(); }

void PinnedPieces::release() noexcept {
  while (pinned_ > 0) cudaHostUnregister(data_ + --pinned_ * kPiece);
  if (data_) munmap(data_, bytes_);
  data_ = nullptr;
}

namespace {

std::shared_ptr<PinnedPieces> pin(int device, int64_t floats, const std::atomic<bool>& abandoned) {
  try {
    CUDA_CHECK(cudaSetDevice(device));
    return std::make_shared<PinnedPieces>(floats, abandoned);
  } catch (const Error&) { // a limit on locked memory, or too little of it
    cudaGetLastError();
    return nullptr;
  }
}

} // namespace

StateCopier::StateCopier(int device, int64_t floats)
    : device_(device), pinning_(std::async(std::launch::async, pin, device, floats, std::cref(abandoned_))) {}

StateCopier::~StateCopier() {
  abandoned_ = true;
  cudaStreamSynchronize(stream_.get()); // the model's buffers are in use until then
}

std::shared_ptr<float> StateCopier::memory() {
  if (pinning_.valid()) pinned_ = pinning_.get();
  if (!pinned_ || pinned_.use_count() > 1) return nullptr;
  return {pinned_, pinned_->get()};
}

std::function<void()> StateCopier::copy(cudaStream_t compute, std::span<const Piece> pieces) {
  begun_.record(compute);
  begun_.hold(stream_.get());
  for (auto [to, from, count] : pieces) {
    while (count > 0) {
      const int64_t in_piece = PinnedPieces::kPiece - (to - pinned_->get()) % PinnedPieces::kPiece;
      const int64_t now = std::min(count, in_piece);
      CUDA_CHECK(
          cudaMemcpyAsync(to, from, static_cast<size_t>(now) * sizeof(float), cudaMemcpyDeviceToHost, stream_.get()));
      to += now;
      from += now;
      count -= now;
    }
  }
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
