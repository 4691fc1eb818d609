// One allocation for many buffers. The same layout code runs twice: once to count bytes, once to place buffers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/model/model.h"

namespace gpt2 {

// Returns 256-byte aligned buffers in [base, ...); with a null base it only counts.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}

  template <class T>
  T* take(int64_t count, const char* purpose) {
    const size_t offset = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    if (used_ > peak_) note(purpose, static_cast<int64_t>(used_ - std::max(peak_, offset)));
    peak_ = std::max(peak_, used_);
    return base_ ? reinterpret_cast<T*>(base_ + offset) : nullptr;
  }

  // Buffers with disjoint lifetimes share memory: take one set, rewind to the mark, take the other.
  size_t mark() const { return used_; }
  void rewind(size_t mark) { used_ = mark; }
  void skip_to_peak() { used_ = peak_; }

  size_t size() const { return peak_; }
  const std::vector<MemoryLine>& report() const { return report_; } // by purpose, in allocation order

 private:
  void note(const char* purpose, int64_t bytes) {
    auto found = std::ranges::find(report_, purpose, &MemoryLine::purpose);
    if (found == report_.end()) found = report_.insert(report_.end(), {purpose, 0});
    found->bytes += bytes;
  }

  std::byte* base_;
  size_t used_ = 0, peak_ = 0;
  std::vector<MemoryLine> report_;
};

} // namespace gpt2
