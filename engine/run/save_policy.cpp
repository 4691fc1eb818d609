#include "engine/run/save_policy.h"

#include <cmath>

#include "engine/run/summary.h"

namespace gpt2 {
namespace {

constexpr double kFilesLookSeconds = 30; // bounds what a power cut takes of the logs

} // namespace

SoundSaves::SoundSaves(Session& session)
    : session_(session),
      state_(session.state),
      console_(session.console),
      saved_step_(session.resumed ? session.state.step : -1),
      last_good_(session.resumed ? session.resumed->checkpoint : "") {}

// ---- are the weights sound? ----

void SoundSaves::note(const StepResult& result) {
  verdict_ = result.verdict;
  skipped_in_a_row_ = result.skipped_in_a_row;
}

void SoundSaves::note_best(double loss) {
  best_before_ = state_.best_val_loss;
  state_.best_val_loss = loss;
  best_step_ = state_.step;
}

std::string SoundSaves::unsound() const {
  if (skipped_in_a_row_ > 0) {
    return skipped_in_a_row_ == 1 ? "the last step was skipped: " + reason_of(verdict_)
                                  : "the last " + std::to_string(skipped_in_a_row_) +
                                        " steps were skipped, the latest because " + reason_of(verdict_);
  }
  if (state_.last_val_step == state_.step && !std::isfinite(state_.last_val_loss))
    return "the validation loss is not finite";
  if (ruined_step_ == state_.step) return "the loss after the last update is not finite";
  return "";
}

// ---- saving ----

void SoundSaves::save_if_sound(bool is_best) {
  const std::string trouble = unsound();
  if (!trouble.empty()) {
    if (!postponed_)
      console_.line("step " + std::to_string(state_.step) + " | not saved until a step is applied again: " + trouble,
                    Style::warning);
    postponed_ = true;
    return;
  }
  look_after_files(); // not into the folder of another run
  save(is_best);
  postponed_ = false;
}

void SoundSaves::save(bool is_best) {
  wait(IfNotSaved::go_on); // one at a time
  session_.checkpoints.begin(*session_.model, state_, is_best, session_.group);
  saved_step_ = state_.step;
  under_way_ = {.is_best = is_best, .best_before = best_before_};
}

// What is saved was left by an update that its own step knew nothing about. The step after it read those weights: only
// if that one was applied may the checkpoint take the place of older ones.
void SoundSaves::judge() {
  if (verdict_ == Verdict::applied)
    under_way_.vindicated = true;
  else
    drop_if_doubtful();
}

void SoundSaves::end_if_written() {
  if (!under_way_.vindicated) return;
  if (const auto result = session_.checkpoints.end_if_written(session_.group)) tell(*result, IfNotSaved::go_on);
  for (const std::string& line : session_.checkpoints.take_warnings()) console_.line(line, Style::warning);
}

void SoundSaves::drop_if_doubtful() {
  if (!session_.checkpoints.saving() || under_way_.vindicated) return;
  session_.checkpoints.drop(session_.group);
  console_.line("step " + std::to_string(saved_step_) + " | not saved: " + unsound(), Style::warning);
  if (under_way_.is_best) forget_best(saved_step_);
  saved_step_ = -1;
  postponed_ = true;
}

// What is the best so far must be on the disk: the next that is better than those before it is saved again.
void SoundSaves::forget_best(int64_t step) {
  if (best_step_ != step) { // a better one has come since
    best_before_ = under_way_.best_before;
    return;
  }
  state_.best_val_loss = under_way_.best_before;
  best_step_ = -1;
}

void SoundSaves::wait(IfNotSaved then) {
  if (!unsound().empty()) drop_if_doubtful();
  if (session_.checkpoints.saving()) tell(session_.checkpoints.end(session_.group), then);
}

void SoundSaves::tell(const SaveResult& result, IfNotSaved then) {
  const std::string step = "step " + std::to_string(result.step) + " | ";
  if (result.error) {
    if (then == IfNotSaved::stop || session_.plan.options.strict_saves) throw_agreed(session_.group, *result.error);
    if (saved_step_ == result.step) saved_step_ = -1;
    if (result.is_best) forget_best(result.step);
    const std::string line = step + "not saved, training goes on: " + result.error->what() +
                             (result.error->hint().empty() ? "" : " (" + result.error->hint() + ")");
    console_.line(line, Style::warning);
    session_.log.not_saved(result.step, line);
    return;
  }
  const auto& [saved_step, path, is_best, none] = result;
  last_good_ = path;
  session_.log.saved(saved_step, path, is_best);
  console_.line(step + "saved " + path + (is_best ? " (best)" : ""));
}

// ---- around it ----

bool SoundSaves::files_are_due() const { return since_look_.seconds() > kFilesLookSeconds; }

// Somebody may remove what a run of days writes to.
void SoundSaves::look_after_files() {
  since_look_ = {};
  const bool logs_gone = session_.log_lock && session_.log_lock->hold(); // the log itself tells
  // Without a lock of its own the folder of checkpoints is that of the logs, or another rank's to look after.
  const bool checkpoints_gone = session_.checkpoint_lock ? session_.checkpoint_lock->hold() : logs_gone;
  if (checkpoints_gone) {
    console_.line("warning: " + session_.checkpoints.path() +
                      " was removed while the run was writing to it, with the checkpoints in it: it is made again",
                  Style::warning);
    if (session_.group.alone()) postponed_ = true; // ranks save together, at the next interval
  }
  session_.log.flush();
}

AgreedError SoundSaves::diverged(const std::string& what) {
  wait(IfNotSaved::go_on);
  session_.log.flush();
  if (last_good_.empty())
    return {ExitCode::numerics, what + "; no checkpoint was saved",
            "start again with a lower --max_lr or a smaller --grad_clip"};
  return {ExitCode::numerics, what + "; the last good checkpoint is " + last_good_,
          "go on from it with a lower rate: " +
              resume_command(last_good_, session_.plan.options, session_.plan.schedule.max_lr / 2)};
}

} // namespace gpt2
