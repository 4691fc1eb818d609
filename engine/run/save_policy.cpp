#include "engine/run/save_policy.h"

#include <cmath>

#include "engine/base/formatted.h"
#include "engine/run/rank_start.h"
#include "engine/run/summary.h"

namespace gpt2 {

SavePolicy::SavePolicy(Session& session)
    : session_(session),
      state_(session.state),
      console_(session.console),
      saved_step_(session.resumed ? session.state.step : -1),
      last_good_(session.resumed ? session.resumed->checkpoint : "") {}

// ---- are the weights sound? ----

void SavePolicy::note_best(double loss) {
  best_before_ = state_.best_val_loss;
  state_.best_val_loss = loss;
  best_step_ = state_.step;
}

std::string SavePolicy::unsound() const {
  if (const int skipped = last_step_.skipped_in_a_row; skipped > 0) {
    return (skipped == 1 ? "the last step was skipped: "
                         : concat("the last ", skipped, " steps were skipped, the latest because ")) +
           reason_of(last_step_.verdict);
  }
  if (state_.last_val_step == state_.step && !std::isfinite(state_.last_val_loss))
    return "the validation loss is not finite";
  if (ruined_step_ == state_.step) return "the loss after the last update is not finite";
  return "";
}

// ---- saving ----

void SavePolicy::save_if_sound(bool is_best) {
  const std::string trouble = unsound();
  if (!trouble.empty()) {
    if (!postponed_)
      console_.line(concat("step ", state_.step, " | not saved until a step is applied again: ", trouble),
                    Style::warning);
    postponed_ = true;
    return;
  }
  check_files(); // the folder may have been replaced
  save(is_best);
  postponed_ = false;
}

void SavePolicy::save(bool is_best) {
  wait(IfNotSaved::keep_training); // one at a time
  session_.checkpoints.begin(*session_.model, state_, is_best, session_.group);
  saved_step_ = state_.step;
  current_save_ = {.is_best = is_best, .best_before = best_before_};
}

// The saved weights come from an update whose own step was judged before it. The next step reads those weights: only if
// that step is applied may the checkpoint replace older ones.
void SavePolicy::judge() {
  if (last_step_.verdict == Verdict::applied)
    current_save_.confirmed = true;
  else
    drop_if_doubtful();
}

void SavePolicy::end_if_written() {
  if (!current_save_.confirmed) return;
  if (const auto result = session_.checkpoints.end_if_written(session_.group))
    report(*result, IfNotSaved::keep_training);
  for (const std::string& line : session_.checkpoints.take_warnings()) console_.line(line, Style::warning);
}

void SavePolicy::drop_if_doubtful() {
  if (!session_.checkpoints.saving() || current_save_.confirmed) return;
  session_.checkpoints.drop(session_.group);
  console_.line(concat("step ", saved_step_, " | not saved: ", unsound()), Style::warning);
  if (current_save_.is_best) forget_best(saved_step_);
  saved_step_ = -1;
  postponed_ = true;
}

// The best loss must be that of a saved checkpoint: the next evaluation that beats the earlier ones is saved.
void SavePolicy::forget_best(int64_t step) {
  if (best_step_ != step) { // a later step is better
    best_before_ = current_save_.best_before;
    return;
  }
  state_.best_val_loss = current_save_.best_before;
  best_step_ = -1;
}

void SavePolicy::wait(IfNotSaved then) {
  if (!unsound().empty()) drop_if_doubtful();
  if (session_.checkpoints.saving()) report(session_.checkpoints.end(session_.group), then);
}

void SavePolicy::report(const SaveResult& result, IfNotSaved then) {
  const std::string step = concat("step ", result.step, " | ");
  if (result.error) {
    if (then == IfNotSaved::stop || session_.plan.options.strict_saves) throw_agreed(session_.group, *result.error);
    if (saved_step_ == result.step) saved_step_ = -1;
    if (result.is_best) forget_best(result.step);
    const std::string line = step + "not saved, training continues: " + result.error->what() +
                             (result.error->hint().empty() ? "" : " (" + result.error->hint() + ")");
    console_.line(line, Style::warning);
    session_.log.event(result.step, "save_failed", line);
    return;
  }
  last_good_ = result.path;
  session_.log.saved(result.step, result.path, result.is_best);
  console_.line(step + "saved " + result.path + (result.is_best ? " (best)" : ""));
}

// ---- files ----

bool SavePolicy::file_check_due() const {
  constexpr double kSeconds = 30; // at most this much of the logs is lost in a power cut
  return since_file_check_.seconds() > kSeconds;
}

// A user may remove the folders of a live run.
void SavePolicy::check_files() {
  since_file_check_ = {};
  const bool logs_gone = session_.log_lock && session_.log_lock->hold(); // RunLog::flush() reports it
  // Without a checkpoint lock the folder is also the log folder, or another rank checks it.
  const bool checkpoints_gone = session_.checkpoint_lock ? session_.checkpoint_lock->hold() : logs_gone;
  if (checkpoints_gone) {
    console_.line("warning: " + session_.checkpoints.path() +
                      " was removed while the run was writing to it, with the checkpoints in it: creating it again",
                  Style::warning);
    if (session_.group.alone()) postponed_ = true; // ranks save together, when the next save is due
  }
  session_.log.flush();
}

AgreedError SavePolicy::diverged(const std::string& what) {
  wait(IfNotSaved::keep_training);
  session_.log.flush();
  if (last_good_.empty())
    return {ExitCode::numerics, what + "; no checkpoint was saved",
            "start again with a lower --max_lr or a smaller --grad_clip"};
  return {ExitCode::numerics, what + "; the last good checkpoint is " + last_good_,
          "resume from it with a lower rate: " +
              resume_command(last_good_, session_.plan.options, session_.plan.schedule.max_lr / 2)};
}

} // namespace gpt2
