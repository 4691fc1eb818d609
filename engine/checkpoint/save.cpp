#include "engine/checkpoint/save.h"

#include <filesystem>
#include <new>
#include <system_error>
#include <vector>

#include "engine/hdf5/manifest.h"
#include "engine/ranks/agreement.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

void expect_from(int rank, const std::string& path) {
  std::error_code unreadable;
  if (fs::exists(path, unreadable)) return;
  throw Error(ExitCode::disk, "cannot see " + path + ", which rank " + std::to_string(rank) + " made",
              "--checkpoint_dir must be on a file system that all nodes share");
}

} // namespace

CheckpointSave::CheckpointSave(const std::string& path, StatefulModel& model, const TrainState& state, RankGroup& group)
    : config_(model.config()), state_(state) {
  error_ = agree(group, attempt([&] {
                   if (!group.leads()) return;
                   const std::string folder = fs::path(path).parent_path().string();
                   make_folders(folder);
                   clean_leftovers(folder);
                   check_room_for_checkpoint(folder, ParameterTable(config_).size());
                   pending_.emplace(path);
                 }));
  if (error_) return;
  const std::string temporary = group.broadcast(pending_ ? fs::absolute(pending_->temporary_path()).string() : "");
  error_ = agree(group, attempt([&] { snapshot_ = model.snapshot(); }));
  if (error_) {
    snapshot_.reset();
    return;
  }
  temporary_ = temporary;
  written_ = false;
  const int rank = group.rank(), ranks = group.ranks();
  try {
    thread_ = std::thread(&CheckpointSave::write, this, rank, ranks);
  } catch (const std::system_error&) { // no thread available: training waits
    write(rank, ranks);
  }
}

CheckpointSave::~CheckpointSave() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointSave::write(int rank, int ranks) noexcept {
  error_ = attempt([&] {
    try {
      expect_from(0, temporary_);
      write_rank_file(temporary_, rank, ranks, config_, state_, *snapshot_);
      if (rank == 0) write_file_atomic(temporary_ + "/options.toml", state_.options_toml);
      hashes_ = manifest_entry(rank_file(temporary_, rank));
    } catch (const std::bad_alloc&) {
      throw Error(ExitCode::device, "out of memory while a checkpoint was written", "free some of the host's memory");
    }
  });
  snapshot_.reset(); // frees as many bytes as the model's state
  written_ = true;
}

std::optional<Error> CheckpointSave::commit(RankGroup& group) {
  if (temporary_.empty()) return error_;
  if (thread_.joinable()) thread_.join();
  if (const std::optional<Error> failed = agree(group, error_)) return failed;
  const std::vector<std::string> hashes_of_all = group.gather(hashes_);
  return agree(group, attempt([&] {
                 if (!group.leads()) return;
                 // Another node may have a local folder of the same path, where its rank's file would go unnoticed.
                 for (int rank = 1; rank < group.ranks(); ++rank) expect_from(rank, rank_file(temporary_, rank));
                 write_manifest(temporary_, state_.step, hashes_of_all, summary_of(config_, state_));
                 pending_->commit();
               }));
}

} // namespace gpt2
