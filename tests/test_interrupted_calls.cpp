// Signals that interrupt system calls, as network file systems let them. This program's own open, mkdir, ... stand
// before the C library's: each fails twice with EINTR, then does its work.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <map>
#include <string>

#include "engine/hdf5/reader.h"
#include "engine/hdf5/state_writer.h"
#include "engine/logging/log_file.h"
#include "engine/system/files.h"
#include "engine/system/folder_lock.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

bool interrupting = false;
std::map<std::string, int> interruptions; // by call

bool interrupted(const char* call) {
  if (!interrupting) return false;
  if (interruptions[call]++ % 3 == 2) return false;
  errno = EINTR;
  return true;
}

struct Interruptions {
  Interruptions() { interruptions.clear(), interrupting = true; }
  ~Interruptions() { interrupting = false; }
};

} // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return interrupted("open") ? -1 : static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int mkdir(const char* path, mode_t mode) noexcept {
  return interrupted("mkdir") ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int rename(const char* from, const char* to) noexcept {
  return interrupted("rename") ? -1 : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int fsync(int descriptor) { return interrupted("fsync") ? -1 : static_cast<int>(::syscall(SYS_fsync, descriptor)); }
int ftruncate(int descriptor, off_t size) noexcept {
  return interrupted("ftruncate") ? -1 : static_cast<int>(::syscall(SYS_ftruncate, descriptor, size));
}

} // extern "C"

TEST_CASE("files, folders, locks, logs and HDF5 are written through interruptions") {
  const TemporaryFolder folder;
  {
    const Interruptions interruptions;
    make_folders(folder / "a/b");
    write_file_atomic(folder / "a/b/text", "whole");
    FolderLock lock(folder / "run", "--run_name");
    LogFile log(folder / "run/log", AppendFile::Mode::create, [](const std::string& line) { FAIL(line); });
    log.append("record\n");
    log.flush();
    Hdf5NewFile file(folder / "state.h5", "");
    file.write_attribute("format", std::string("of this test"));
    file.close();
    sync_path(folder / "state.h5");
  }
  CHECK(read_text_file(folder / "a/b/text") == "whole");
  CHECK(read_text_file(folder / "run/log") == "record\n");
  const File written = File::open(folder / "state.h5");
  CHECK(read_hdf5(hdf5_bytes(written)).attributes.contains("format"));
  for (const char* call : {"open", "mkdir", "rename", "fsync", "ftruncate"}) {
    CAPTURE(call);
    CHECK(interruptions[call] >= 3);
  }
}
