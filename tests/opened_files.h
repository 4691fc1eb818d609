// How often files are opened: inotify counts each open below the watched folders, or of a watched file.
#pragma once

#include <doctest/doctest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <string>

namespace gpt2 {

class OpenedFiles {
 public:
  OpenedFiles() : descriptor_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) { REQUIRE(descriptor_ >= 0); }
  ~OpenedFiles() { ::close(descriptor_); }
  OpenedFiles(const OpenedFiles&) = delete;
  OpenedFiles& operator=(const OpenedFiles&) = delete;

  void watch(const std::string& path) { // a folder: the files in it, not the folder itself
    const int watch = ::inotify_add_watch(descriptor_, path.c_str(), IN_OPEN);
    REQUIRE(watch >= 0);
    paths_[watch] = path;
  }

  // Since the last call, by path; a file that is open twice at once may count once.
  std::map<std::string, int> take() {
    std::map<std::string, int> opened;
    alignas(inotify_event) std::array<char, 1 << 16> buffer;
    for (ssize_t size = 0; (size = ::read(descriptor_, buffer.data(), buffer.size())) > 0;) {
      for (ssize_t at = 0; at < size;) {
        inotify_event event;
        std::memcpy(&event, buffer.data() + at, sizeof event);
        const char* const name = buffer.data() + at + sizeof event;
        const bool is_folder = (event.mask & IN_ISDIR) != 0;
        if (!is_folder) ++opened[paths_[event.wd] + (event.len > 0 ? "/" + std::string(name) : "")];
        at += static_cast<ssize_t>(sizeof event + event.len);
      }
    }
    return opened;
  }

 private:
  int descriptor_;
  std::map<int, std::string> paths_;
};

} // namespace gpt2
