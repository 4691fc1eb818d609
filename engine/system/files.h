// Positional file I/O and atomic replacement of files. Every failure is an Error that names the path.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/descriptor.h"
#include "engine/base/error.h"

namespace gpt2 {

// Repeats a system call that a signal interrupted: network file systems return EINTR despite SA_RESTART. Not for
// close(2), which releases the descriptor anyway.
template <class Call>
auto retry_on_eintr(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// open(2) and flock(2) with retry_on_eintr(). try_lock() does not wait; false: another process holds the lock. True
// also if the file system has no locks.
OwnedDescriptor open_descriptor(const std::string& path, int flags, mode_t mode = 0666);
bool try_lock(int descriptor, int kind);

// pread(2) until `out` is full or the file ends. Returns the bytes read, or -1.
ssize_t read_all(int descriptor, std::span<std::byte> out, int64_t offset);
// pwrite(2), or write(2) if offset < 0, until all is written. False: see errno; EIO if the file system accepts no byte.
bool write_all(int descriptor, std::span<const std::byte> bytes, int64_t offset = -1);

// An open file. Reads and writes take an offset, so threads may share one.
class File {
 public:
  // An existing regular file. Failures, now and in later reads, are Error(on_error).
  static File open(const std::string& path, ExitCode on_error = ExitCode::data);
  // A new or truncated file. Failures are Error(disk).
  static File create(const std::string& path);
  // A new file, or an existing one with its content. Failures are Error(disk).
  static File update(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size() const; // bytes

  // Fills `out`, or throws: also if the file ends too early.
  void read_at(int64_t offset, std::span<std::byte> out) const;
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void resize(int64_t bytes); // truncates, or appends zeros
  void sync();                // fsync

 private:
  File(std::string path, OwnedDescriptor opened, ExitCode on_error)
      : path_(std::move(path)), opened_(std::move(opened)), on_error_(on_error) {}
  static File create_with(int flags, const std::string& path); // of open(2), besides O_RDWR and O_CREAT

  friend class PendingFile;
  std::string path_;
  OwnedDescriptor opened_;
  ExitCode on_error_;
};

enum class Links {
  follow,  // a path from the user: writes the target of a link
  replace, // a path chosen by the program: replaces a link, its target is untouched
};

// A file under a temporary name in the folder of `path`. commit() syncs it and renames it to `path`; without commit()
// the destructor removes it, and `path` is unchanged.
class PendingFile {
 public:
  explicit PendingFile(std::string path, Links links = Links::follow);
  PendingFile(const PendingFile&) = delete;
  ~PendingFile();

  const std::string& temporary_path() const { return temporary_; }
  File create() const; // the temporary file; removes an old one, follows no link
  void commit();

 private:
  std::string path_, temporary_;
};

// The content of a file or a pipe. Error(on_error) if it is larger than `most_bytes`.
std::string read_text_file(const std::string& path, ExitCode on_error = ExitCode::data, size_t most_bytes = SIZE_MAX);
void write_file_atomic(const std::string& path, std::string_view bytes, Links links = Links::follow);

// The final target of the symbolic link `path`, whether it exists or not; `path` if it is no link.
std::string resolve_links(const std::string& path);

void make_folders(const std::string& path);                   // as mkdir -p
void sync_path(const std::string& path);                      // fsync of a file or a folder
bool renamed(const std::string& from, const std::string& to); // replaces `to`; false: see errno
bool has_name(int descriptor, const std::string& path);       // `path` still names the open file
std::string nearest_existing(const std::string& path);        // `path`, or its nearest ancestor that exists
int64_t free_disk_space(const std::string& path);             // bytes available to the user at nearest_existing(path)

// Finds `path` of the source tree next to this program, in its package (FOLDER/bin/PROGRAM, FOLDER/lib/libgpt2.so), or
// in the tree that built it (TREE/build/PRESET/PROGRAM, TREE/build/PRESET/FOLDER/PROGRAM); "" if in none. A moved tree
// must have a CMakeLists.txt, belong to this user or root, and not be world-writable. Never searches the working folder
// or other folders above the program: users who can write there could choose what this program runs.
std::string find_in_tree(const std::string& path);

std::vector<std::string> missing_folders(const std::string& path); // that make_folders() would make, innermost first

// make_folders(); the destructor removes the folders that it created, if they are empty.
class ScopedFolders {
 public:
  explicit ScopedFolders(const std::string& path);
  ScopedFolders(const ScopedFolders&) = delete;
  ~ScopedFolders();

 private:
  explicit ScopedFolders(std::vector<std::string> missing) : made_(std::move(missing)) {}
  std::vector<std::string> made_; // innermost first
};

// Error(code) for the failed system call that set `error_number`: "cannot <action> <path>: <reason>", with a hint.
[[noreturn]] void throw_system_error(ExitCode code, std::string_view action, const std::string& path, int error_number);

} // namespace gpt2
