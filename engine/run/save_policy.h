// How a run saves: only weights that are to be trusted, one save at a time, beside training; and what follows when a
// save fails.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/error.h"
#include "engine/base/stopwatch.h"
#include "engine/ranks/agreement.h"
#include "engine/run/session.h"

namespace gpt2 {

class SoundSaves {
 public:
  explicit SoundSaves(Session& session); // which must outlive it

  // ---- what the trainer finds out about the weights ----
  void note(const StepResult& result);               // of the last step
  void note_best(double loss);                       // the best evaluation so far is that of this step
  void note_ruined() { ruined_step_ = state_.step; } // after whose update the loss is not finite
  std::string unsound() const;                       // why the weights are not to be trusted; empty: they are

  // ---- when to save ----
  bool postponed() const { return postponed_; } // until a step is applied
  bool is_saved() const { return saved_step_ == state_.step; }
  bool is_best() const { return best_step_ == state_.step; }
  void forget_saved() { saved_step_ = -1; } // this step is to be saved once more

  // ---- saving ----
  void save_if_sound(bool is_best);
  void save(bool is_best); // begins to: a thread writes while training goes on
  void judge();            // the save under way, after a step that read what it saves
  void end_if_written();
  enum class IfNotSaved { go_on, stop };
  void wait(IfNotSaved);

  // ---- around it ----
  bool files_are_due() const; // for a look
  void look_after_files();
  const std::string& last_good() const { return last_good_; }
  AgreedError diverged(const std::string& what);

 private:
  void drop_if_doubtful();
  void forget_best(int64_t step);
  void tell(const SaveResult& result, IfNotSaved);

  Session& session_;
  TrainState& state_;
  Console& console_;

  Verdict verdict_ = Verdict::applied; // of the last step
  int skipped_in_a_row_ = 0;           // up to it
  int64_t ruined_step_ = -1, saved_step_, best_step_ = -1;
  double best_before_ = kNoLoss; // loss, before that of best_step_
  bool postponed_ = false;
  struct {
    bool vindicated = false; // by a step after it
    bool is_best = false;
    double best_before = kNoLoss;
  } under_way_;           // the save, if there is one
  Stopwatch since_look_;  // at files
  std::string last_good_; // checkpoint; empty: none yet
};

} // namespace gpt2
