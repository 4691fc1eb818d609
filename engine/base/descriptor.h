#pragma once

#include <unistd.h>

#include <utility>

namespace gpt2 {

// Owns a file descriptor; negative: none, or the call that created it failed.
class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int descriptor = -1) : descriptor_(descriptor) {}
  ~OwnedDescriptor() { close(); }
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  void close() {
    if (is_open()) ::close(std::exchange(descriptor_, -1));
  }

 private:
  int descriptor_;
};

} // namespace gpt2
