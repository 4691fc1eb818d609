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
  ~FolderLock(); // removes the file; also the folder, if it was made for this and nothing was written to it
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Now and then, before something is written: a folder that was removed took the lock with it. True: so it was, and
  // is made and locked again. Throws Error(usage) if another run was faster. What else fails is left for the next time.
  bool hold();
  const std::string& folder() const { return folder_; }

 private:
  void lock();
  bool is_ours() const;

  const std::string folder_, path_, flag_;
  bool folder_is_ours_ = false; // it was not there, or had the file of a writer that died
  int descriptor_ = -1;         // -1: was removed, and could not be made again yet
  bool recognizable_ = true;    // no: a file system that numbers its files anew each time
};

// Does anybody hold the lock now? For those who only look: makes nothing, and keeps nobody out but for the moment of
// the question. A file system without locks says no.
bool has_writer(const std::string& folder);

} // namespace gpt2
