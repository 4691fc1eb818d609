// One writer per folder: a file `.lock` in it, locked (flock) as long as this lives. The kernel lets go of the lock
// when a process dies, however it dies, so a file that is left behind blocks nobody. A file system without locks
// does not stop the run: there two writers go unnoticed.
#pragma once

#include <string>

namespace gpt2 {

class FolderLock {
 public:
  // Makes the folder if need be. Throws Error(disk), or Error(usage) that names the writer it has already and `flag`,
  // which chooses another folder.
  FolderLock(std::string folder, const std::string& flag);
  ~FolderLock(); // removes the file, and the folder if nothing was written to it
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string folder_, path_;
  int descriptor_ = -1;
};

} // namespace gpt2
