// When a run saves (only sound weights, one save at a time, in parallel with training), and what follows a failed save.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/error.h"
#include "engine/base/stopwatch.h"
#include "engine/ranks/agreement.h"
#include "engine/run/session.h"

namespace gpt2 {

class SavePolicy {
 public:
  explicit SavePolicy(Session& session); // which must outlive it

  // ---- reports of the trainer ----
  void note(const StepResult& result) { last_step_ = result; }
  void note_best(double loss);                       // this step's validation loss is the best so far
  void note_ruined() { ruined_step_ = state_.step; } // the loss after its update is not finite
  std::string unsound() const;                       // why the weights cannot be trusted; empty: they can

  // ---- when to save ----
  bool postponed() const { return postponed_; } // until a step is applied again
  bool is_saved() const { return saved_step_ == state_.step; }
  bool is_best() const { return best_step_ == state_.step; }
  void forget_saved() { saved_step_ = -1; } // save this step once more

  // ---- saving ----
  void save_if_sound(bool is_best);
  void save(bool is_best); // starts the save: a thread writes while training continues
  void judge();            // the current save, after a step that read the saved weights
  void end_if_written();
  enum class IfNotSaved { keep_training, stop };
  void wait(IfNotSaved);

  // ---- files ----
  bool file_check_due() const;
  void check_files();
  const std::string& last_good() const { return last_good_; }
  AgreedError diverged(const std::string& what);

 private:
  void drop_if_doubtful();
  void forget_best(int64_t step);
  void report(const SaveResult& result, IfNotSaved);

  Session& session_;
  TrainState& state_;
  Console& console_;

  StepResult last_step_;
  int64_t ruined_step_ = -1, saved_step_, best_step_ = -1;
  double best_before_ = kNoLoss; // best loss before best_step_
  bool postponed_ = false;
  struct {
    bool confirmed = false; // the next step was applied
    bool is_best = false;
    double best_before = kNoLoss;
  } current_save_; // valid while checkpoints.saving()
  Stopwatch since_file_check_;
  std::string last_good_; // path of a checkpoint; empty: none yet
};

} // namespace gpt2
