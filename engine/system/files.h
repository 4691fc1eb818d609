// Files by position, and files that appear whole or not at all. Every failure is an Error that names the path.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"

namespace gpt2 {

// Makes a system call again that a signal has interrupted: on network file systems any of them may be, SA_RESTART or
// not. Not for close(2), whose descriptor is gone either way.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// pwrite(2), or write(2) at the end for an offset below 0, made again after a signal. -1 and errno for a file system
// that takes no byte and reports no error: a caller that only looks for -1 would ask for ever.
ssize_t write_some(int descriptor, std::span<const std::byte> bytes, int64_t offset = -1);

// An open file. Reads and writes carry their own offset, so threads may share one.
class File {
 public:
  // A regular file that exists. Failures, now and in later reads, are Error(on_error).
  static File open(const std::string& path, ExitCode on_error = ExitCode::data);
  // A new file, or an old one emptied. Failures are Error(disk).
  static File create(const std::string& path);
  // A new file, or an old one as it is, to be written on. Failures are Error(disk).
  static File update(const std::string& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::string& path() const { return path_; }
  int64_t size() const; // bytes, now

  // All of `out` or an Error: a file that ends too early is one.
  void read_at(int64_t offset, std::span<std::byte> out) const;
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void resize(int64_t bytes); // cuts off what is behind, or adds zeros
  void sync();                // returns when the bytes are on the disk

 private:
  File(std::string path, int descriptor, ExitCode on_error);

  friend class PendingFile;
  std::string path_;
  int descriptor_;
  ExitCode on_error_;
};

enum class Links {
  follow,  // an output that a user named: what a link points to is written, and the link stays
  replace, // a name of our own: nothing else is touched, whatever stands there
};

// A file under a temporary name in the folder of `path`. commit() puts it on the disk and gives it its name in one
// step; without commit() it is removed, and whatever `path` held before is untouched.
class PendingFile {
 public:
  explicit PendingFile(std::string path, Links links = Links::follow);
  PendingFile(const PendingFile&) = delete;
  ~PendingFile();

  const std::string& temporary_path() const { return temporary_; }
  File create() const; // the temporary file, new: whatever has its name is removed, and no link is followed
  void commit();

 private:
  std::string path_, temporary_;
};

// All of a file, or of a pipe. One with more than `most_bytes` is an Error(on_error) too.
std::string read_text_file(const std::string& path, ExitCode on_error = ExitCode::data, size_t most_bytes = SIZE_MAX);
void write_file_atomic(const std::string& path, std::string_view bytes, Links links = Links::follow);

// Where the symbolic link `path` leads, through all that follow, whether there is anything or not; `path` if it is
// none.
std::string behind_links(const std::string& path);

void make_folders(const std::string& path);                   // as mkdir -p
void sync_path(const std::string& path);                      // fsync of a file or a folder
bool renamed(const std::string& from, const std::string& to); // over what is there; else errno says why not
bool has_name(int descriptor, const std::string& path);       // is the open file still the one of that name?
std::string nearest_existing(const std::string& path);        // it, or the first folder above it that is there
int64_t free_disk_space(const std::string& path);             // bytes a user may still write at or above `path`

// Where `path` of the source tree is: beside this program, or in the tree that it was built in, as
// TREE/build/PRESET/PROGRAM or TREE/build/PRESET/FOLDER/PROGRAM; "" if it is in neither. A tree that was moved has a
// CMakeLists.txt, belongs to this user or to root, and not everybody may write to it. Never in the working folder or
// another one above the program: whoever may write there would decide what this program runs.
std::string find_in_tree(const std::string& path);

// Folders as make_folders() makes them, for as long as this lives: those that it had to make go again, if they are
// empty.
class PassingFolders {
 public:
  explicit PassingFolders(const std::string& path);
  PassingFolders(const PassingFolders&) = delete;
  ~PassingFolders();

 private:
  std::vector<std::string> made_; // innermost first
};

// Error(code) for the failed system call that set `error_number`: "cannot <action> <path>: <reason>", with a hint.
[[noreturn]] void throw_system_error(ExitCode code, std::string_view action, const std::string& path, int error_number);

} // namespace gpt2
