#include "engine/checkpoint/folder.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "engine/ranks/agreement.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> clean_up(const std::string& folder, const KeepRule& keep, int64_t next_bytes) {
  std::vector<std::string> warnings;
  const auto failed = attempt([&] {
    warnings.push_back(prune(folder, keep).why_not);
    warnings.push_back(disk_space_warning(folder, next_bytes, free_disk_space(folder)));
  });
  if (failed) warnings.push_back(failed->what());
  std::erase(warnings, "");
  return warnings;
}

} // namespace

CheckpointFolder::CheckpointFolder(const std::string& checkpoint_dir, const std::string& run, const KeepRule& keep)
    : root_(without_slashes(checkpoint_dir)), run_(without_slashes(run)), folder_(root_ + "/" + run_), keep_(keep) {}

void CheckpointFolder::begin(StatefulModel& model, const TrainState& state, bool is_best, RankGroup& group) {
  if (saving()) throw std::logic_error("begin() before the end() of the previous save");
  const auto busy = group.busy(); // removing leftovers may take longer than the timeout of the other ranks
  end_cleaning();
  result_ = {.step = state.step, .path = folder_ + "/" + step_folder_name(state.step), .is_best = is_best};
  bytes_ = checkpoint_bytes(ParameterTable(model.config()).size());
  save_ = std::make_unique<CheckpointSave>(result_.path, model, state, group);
}

std::optional<SaveResult> CheckpointFolder::end_if_written(RankGroup& group) {
  if (!saving() || any_rank(group, !save_->written())) return std::nullopt;
  return end(group);
}

SaveResult CheckpointFolder::end(RankGroup& group) {
  const auto busy = group.busy(); // a slow disk may take longer as well
  const std::unique_ptr<CheckpointSave> save = std::move(save_);
  result_.error = save->commit(group);
  if (!result_.error && group.leads()) {
    // The checkpoint exists even if its markers cannot be written: --resume latest searches by step as well.
    if (const auto error = attempt([&] { mark(step_folder_name(result_.step), result_.is_best); }))
      warnings_.push_back(std::string("warning: ") + error->what());
    const auto clean = [folder = folder_, keep = keep_, bytes = bytes_] { return clean_up(folder, keep, bytes); };
    cleaning_ = std::async(clean); // on a thread; if none is available, end_cleaning() runs it
  }
  group.barrier(); // no rank continues before the markers are written
  return result_;
}

void CheckpointFolder::drop(RankGroup& group) {
  const auto busy = group.busy(); // the thread finishes its write first
  save_.reset();
}

void CheckpointFolder::end_cleaning() {
  if (!cleaning_.valid()) return;
  const std::vector<std::string> found = cleaning_.get();
  warnings_.insert(warnings_.end(), found.begin(), found.end());
}

std::vector<std::string> CheckpointFolder::take_warnings() {
  if (cleaning_.valid() && cleaning_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) end_cleaning();
  return std::exchange(warnings_, {});
}

std::string CheckpointFolder::save(StatefulModel& model, const TrainState& state, bool is_best, RankGroup& group) {
  begin(model, state, is_best, group);
  const SaveResult result = end(group);
  end_cleaning();
  if (result.error) throw_agreed(group, *result.error);
  return result.path;
}

void CheckpointFolder::mark(const std::string& name, bool is_best) const {
  write_file_atomic(folder_ + "/" + kLatest, name + "\n", Links::replace);
  if (is_best) write_file_atomic(folder_ + "/" + kBest, name + "\n", Links::replace);
  show_in_root(kLatest);
  if (is_best_of_root()) show_in_root(kBest);
}

// Of all runs in the --checkpoint_dir. Compared with the marked checkpoint alone: every run updates the marker.
bool CheckpointFolder::is_best_of_root() const {
  const std::string own = follow_marker(folder_, kBest), marked = follow_marker(root_, kBest);
  if (own.empty() || marked.empty() || fs::path(marked).parent_path() == fs::path(folder_)) return !own.empty();
  try {
    return read_summary(own).val_loss < read_summary(marked).val_loss;
  } catch (const Error&) { // the marked one is damaged, or was removed meanwhile
    return true;
  }
}

// Copies this run's marker to the --checkpoint_dir. The temporary file is in the run's own folder: another run on
// another host may have the same process id.
void CheckpointFolder::show_in_root(const char* marker) const {
  const std::string checkpoint = follow_marker(folder_, marker);
  if (checkpoint.empty()) return;
  const std::string made = folder_ + "/.newest_" + marker, wanted = root_ + "/" + marker;
  write_file_atomic(made, run_ + "/" + fs::path(checkpoint).filename().string() + "\n", Links::replace);
  if (!renamed(made, wanted)) throw_system_error(ExitCode::disk, "replace", wanted, errno);
  sync_path(root_);
}

void CheckpointFolder::check_writable(int64_t parameters) const {
  make_folders(folder_);
  const std::string probe = folder_ + "/.probe-" + std::to_string(::getpid());
  write_file_atomic(probe, "");
  ::unlink(probe.c_str());
  check_room_for_checkpoint(folder_, parameters);
}

} // namespace gpt2
