#include "engine/cuda/state_copier.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

// The driver holds a lock while it pins: one call for the 19 GB of 1558M would stop every launch for ten seconds.
constexpr size_t kChunkBytes = 128 << 20;

// Host memory that is pinned chunk by chunk.
class PinnedChunks {
 public:
  explicit PinnedChunks(size_t bytes)
      : bytes_(bytes), base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    madvise(base_, bytes_, MADV_HUGEPAGE); // 512 times fewer pages to pin; an error changes nothing
  }
  ~PinnedChunks() {
    for (size_t at = 0; at < pinned_; at += kChunkBytes) cudaHostUnregister(chunk(at));
    munmap(base_, bytes_);
  }
  PinnedChunks(const PinnedChunks&) = delete;

  // False if `stop` became true first.
  bool pin(const std::atomic<bool>& stop) {
    while (pinned_ < bytes_) {
      if (stop) return false;
      const size_t size = std::min(kChunkBytes, bytes_ - pinned_);
      std::memset(chunk(pinned_), 0, size); // page faults happen here, outside the driver
      CUDA_CHECK(cudaHostRegister(chunk(pinned_), size, cudaHostRegisterDefault));
      pinned_ += size;
    }
    return true;
  }
  float* get() const { return static_cast<float*>(base_); }

 private:
  void* chunk(size_t at) const { return static_cast<std::byte*>(base_) + at; }

  const size_t bytes_;
  void* const base_;
  size_t pinned_ = 0;
};

std::shared_ptr<float> pin(int device, int64_t floats, const std::atomic<bool>& stop) {
  try {
    CUDA_CHECK(cudaSetDevice(device));
    const auto chunks = std::make_shared<PinnedChunks>(static_cast<size_t>(floats) * sizeof(float));
    if (chunks->pin(stop)) return {chunks, chunks->get()};
  } catch (const std::exception&) { // ulimit -l, or not enough memory
    cudaGetLastError();
  }
  return nullptr;
}

} // namespace

StateCopier::StateCopier(int device, int64_t floats) : device_(device), floats_(floats) {}

StateCopier::~StateCopier() {
  stop_ = true;
  cudaStreamSynchronize(stream_.get()); // the copy reads the model's buffers
}

void StateCopier::start_pinning() {
  if (std::exchange(started_, true)) return;
  pinning_ = std::async(std::launch::async, [this] { return pin(device_, floats_, stop_); });
}

std::shared_ptr<float> StateCopier::memory() {
  start_pinning();
  if (pinning_.valid()) pinned_ = pinning_.get();
  return pinned_.use_count() == 1 ? pinned_ : nullptr;
}

std::function<void()> StateCopier::copy(cudaStream_t compute, std::span<const Transfer> transfers) {
  begun_.record(compute);
  begun_.hold(stream_.get());
  constexpr int64_t kChunk = kChunkBytes / sizeof(float);
  for (auto [to, from, count] : transfers) {
    while (count > 0) { // no copy may cross from one pinned chunk into the next
      const int64_t part = std::min(count, kChunk - (to - pinned_.get()) % kChunk);
      CUDA_CHECK(
          cudaMemcpyAsync(to, from, static_cast<size_t>(part) * sizeof(float), cudaMemcpyDeviceToHost, stream_.get()));
      to += part, from += part, count -= part;
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
