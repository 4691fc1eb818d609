// Atomic creation of a folder, and cleanup after a crash (docs/checkpoints.md).
#pragma once

#include <string>

namespace gpt2 {

// A folder under a temporary name; the destructor removes it unless commit() has renamed it.
class PendingFolder {
 public:
  explicit PendingFolder(std::string path);
  ~PendingFolder();
  PendingFolder(const PendingFolder&) = delete;
  PendingFolder& operator=(const PendingFolder&) = delete;

  const std::string& temporary_path() const { return temporary_; }
  void commit(); // replaces an older folder of the same name

 private:
  void exchange();

  std::string path_, temporary_;
};

std::string temporary_name(const std::string& path); // PATH.tmp-PID: readers ignore it; removed after its writer died

// For the writer of a run folder: removes temporary names of dead writers and restores what they had set aside.
void clean_leftovers(const std::string& folder);

// For a reader: renames step_N.old-PID to step_N if that name is free, no process writes here and PID is dead.
void restore_set_aside(const std::string& folder);

} // namespace gpt2
