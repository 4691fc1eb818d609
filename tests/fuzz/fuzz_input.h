// What every fuzz target needs. A target is one function that must come back from any bytes: refusing them by an Error
// is right, anything else (another exception, a crash, a leak, a hang) is a finding. tests/fuzz/run.sh builds targets
// with libFuzzer; `make test` feeds them the corpus through replay_corpus.cpp.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace gpt2::fuzz {

inline std::string_view text_of(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// A folder in memory, where there is one: readers take paths. Removed at the end of the process.
class MemoryFolder {
 public:
  MemoryFolder() {
    const char* root = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    path_ = std::string(root) + "/gpt2_fuzz_" + std::to_string(::getpid());
    std::filesystem::create_directories(path_);
  }
  ~MemoryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

  std::string write(const std::string& name, std::string_view bytes) const {
    const std::string file = path_ + "/" + name;
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (descriptor < 0 || ::write(descriptor, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      std::perror(file.c_str());
      std::abort();
    }
    ::close(descriptor);
    return file;
  }

 private:
  std::string path_;
};

inline const MemoryFolder& folder() {
  static const MemoryFolder one;
  return one;
}

// Runs it; an Error is an answer. What it says must be one line.
template <typename Read>
void expect_answer(Read read) {
  try {
    read();
  } catch (const Error& error) {
    if (std::string_view(error.what()).empty()) std::abort();
  }
}

inline void require(bool holds) {
  if (!holds) std::abort();
}

} // namespace gpt2::fuzz
