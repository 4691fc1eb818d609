// Folders of a run that stay only if the run uses them.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// Notes which of the folders and their parents are missing, and creates none. The destructor removes those that were
// missing and are empty now. A signal that ends the process at once (StopSignal) does so too, with their .lock files.
// One instance at a time.
class UnusedFolders {
 public:
  explicit UnusedFolders(const std::vector<std::string>& folders);
  ~UnusedFolders();
  UnusedFolders(const UnusedFolders&) = delete;
  UnusedFolders& operator=(const UnusedFolders&) = delete;

 private:
  std::vector<std::string> locks_, missing_; // missing_: innermost first
};

} // namespace gpt2
