// One asynchronous save: the constructor copies the state, a thread writes the copy while training continues, and
// commit() renames the folder once all ranks have written. Ranks communicate in the constructor and in commit(), never
// in the thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "engine/base/error.h"
#include "engine/checkpoint/atomic_folder.h"
#include "engine/checkpoint/format.h"
#include "engine/ranks/rank_group.h"

namespace gpt2 {

class CheckpointSave {
 public:
  // Every rank. Checks the disk space, makes the temporary folder, copies this rank's share and starts the thread.
  CheckpointSave(const std::string& path, StatefulModel& model, const TrainState& state, RankGroup& group);
  ~CheckpointSave(); // waits for the thread; removes what was not committed

  bool written() const { return written_; } // this rank's share is written, or failed
  // Every rank. Waits for this rank's share, then renames the folder. Returns the first error of any rank, the same on
  // all ranks.
  std::optional<Error> commit(RankGroup& group);

 private:
  void write(int rank, int ranks) noexcept;

  const GPT2Config config_;
  const TrainState state_;
  std::optional<PendingFolder> pending_;    // rank 0's
  std::string temporary_;                   // its path, on all ranks; "": the save could not begin
  std::unique_ptr<StateSnapshot> snapshot_; // until it is written
  std::string hashes_;                      // manifest_entry() of this rank's file
  std::optional<Error> error_;
  std::atomic<bool> written_ = true; // false while the share is being written
  std::thread thread_;               // last member: uses the others
};

} // namespace gpt2
