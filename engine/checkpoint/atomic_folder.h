// A folder that appears whole or not at all, and what a crash may leave of one (docs/checkpoints.md).
#pragma once

#include <string>

namespace gpt2 {

// A folder under a temporary name, removed unless it was put in its place.
class PendingFolder {
 public:
  explicit PendingFolder(std::string path);
  ~PendingFolder();
  PendingFolder(const PendingFolder&) = delete;
  PendingFolder& operator=(const PendingFolder&) = delete;

  const std::string& temporary_path() const { return temporary_; }
  void commit(); // in the place of an older one, if there is one

 private:
  void exchange();

  std::string path_, temporary_;
};

std::string temporary_name(const std::string& path); // PATH.tmp-PID: ignored, and removed once its writer is dead

// For the writer of a folder of checkpoints: removes what dead ones left, and brings back what had stepped aside for
// them.
void clean_leftovers(const std::string& folder);

// For a reader: gives step_N.old-PID its name back where nothing else has it, nobody writes here and PID is dead.
void bring_back_set_aside(const std::string& folder);

} // namespace gpt2
