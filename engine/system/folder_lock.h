// One writer per folder: flock(2) on FOLDER/.lock. The kernel releases the lock when the process dies, so a stale file
// blocks no run. On a file system without locks a second writer is not detected.
#pragma once

#include <string>

#include "engine/base/descriptor.h"

namespace gpt2 {

class FolderLock {
 public:
  // Creates the folder if necessary. Throws Error(disk), or Error(usage) that names the current writer and `flag`, the
  // option for another folder.
  FolderLock(std::string folder, const std::string& flag);
  ~FolderLock(); // removes the file, and the folder if it was created here and is empty
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Call before writes: if the folder was removed, the lock is gone with it. Recreates and locks the folder; true if it
  // did. Throws Error(usage) if another run has locked it; ignores other failures until the next call.
  bool hold();

 private:
  void lock();
  bool is_ours() const;

  const std::string folder_, path_, flag_;
  bool folder_is_ours_ = false; // created here, or it had the file of a dead writer
  OwnedDescriptor file_;        // closed: removed, and not recreated yet
  bool recognizable_ = true;    // false: a file system without stable inode numbers
};

// Whether a process holds the lock now. Creates nothing. False on a file system without locks.
bool has_writer(const std::string& folder);

} // namespace gpt2
