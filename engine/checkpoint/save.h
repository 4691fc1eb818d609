// One checkpoint on its way to the disk: the state is copied at once, a thread writes the copy while training goes on,
// and when all ranks have written theirs, the whole gets its name. Ranks talk to each other when a save begins and when
// it is committed, never in the thread.
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
  // Every rank. Looks for room, makes the temporary folder, copies this rank's share and starts the thread.
  CheckpointSave(const std::string& path, StatefulModel& model, const TrainState& state, RankGroup& group);
  ~CheckpointSave(); // waits for the thread; what was not committed leaves nothing behind

  bool written() const { return written_; } // this rank's share, or it failed
  // Every rank. Waits for this rank's share, then gives the whole its name. Answers the first error of any rank, the
  // same on all of them, or none.
  std::optional<Error> commit(RankGroup& group);

 private:
  void write(int rank, int ranks) noexcept;

  const GPT2Config config_;
  const TrainState state_;
  std::optional<PendingFolder> pending_;    // rank 0's
  std::string temporary_;                   // its path, for all; "": the save could not begin
  std::unique_ptr<StateSnapshot> snapshot_; // until it is written
  std::string hashes_;                      // of the file it wrote: its lines of the manifest
  std::optional<Error> error_;
  std::atomic<bool> written_ = false;
  std::thread thread_; // last: it uses the others
};

} // namespace gpt2
