#include <unistd.h>

#include <filesystem>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/stopwatch.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/search.h"
#include "engine/checkpoint/verify.h"
#include "engine/system/files.h"
#include "engine/system/folder_lock.h"
#include "engine/system/process.h"
#include "tools/doctor/checks.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

const std::string kScratch = ".doctor-"; // followed by the process id

// A temporary folder, removed at the end.
class Scratch {
 public:
  explicit Scratch(const fs::path& place)
      : path_(place / (kScratch + std::to_string(::getpid()))), lock_(path_.string(), "--checkpoint_dir") {}
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  std::string path() const { return path_.string(); }

 private:
  const fs::path path_;
  const FolderLock lock_; // leftovers of a killed process are unlocked
};

bool is_scratch(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with(kScratch) && name.size() > kScratch.size() &&
         name.find_first_not_of("0123456789", kScratch.size()) == std::string::npos;
}

void remove_leftovers(const fs::path& place) {
  std::error_code ignored;
  std::vector<fs::path> abandoned;
  for (const auto& entry : fs::directory_iterator(place, ignored))
    if (is_scratch(entry.path()) && !has_writer(entry.path().string())) abandoned.push_back(entry.path());
  for (const fs::path& folder : abandoned) fs::remove_all(folder, ignored);
}

double write_rate(const std::string& folder) { // bytes per second, synced to disk
  constexpr int64_t kMost = int64_t{256} << 20;
  constexpr double kSeconds = 2;
  const std::vector<std::byte> block(size_t{8} << 20, std::byte{0x5A});
  File file = File::create(folder + "/speed");
  fs::remove(folder + "/speed"); // unlinked while open: nothing stays if this process is killed
  int64_t written = 0;
  const Stopwatch watch;
  for (; written < kMost && watch.seconds() < kSeconds; written += static_cast<int64_t>(block.size()))
    file.write_at(written, block);
  file.sync();
  return static_cast<double>(written) / watch.seconds();
}

void check_speed(const PlannedRun* run, const std::string& folder, const Report& report) {
  constexpr double kSlow = 60; // seconds per checkpoint; training continues, but the next save may be due
  const double rate = write_rate(folder);
  const double bytes = run ? static_cast<double>(run->cost.checkpoints.bytes_each) : 0;
  const std::string what =
      format_bytes(rate) + "/s" +
      (run ? ": a checkpoint of " + format_bytes(bytes) + " takes " + format_duration(bytes / rate) : "");
  if (bytes / rate < kSlow) return report({"write speed", Level::ok, what});
  report({"write speed", Level::warn, what, "use a --checkpoint_dir on a faster disk, or a larger --checkpoint_freq"});
}

void check_room(const PlannedRun& run, const Report& report) {
  const CheckpointCost& cost = run.cost.checkpoints;
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const std::string what = text(run.free_disk) + " free; the run keeps " + counted(cost.kept, "checkpoint") + " of " +
                           text(cost.bytes_each) + ", at most " + text(cost.bytes());
  if (cost.bytes() <= run.free_disk) return report({"disk", Level::ok, what});
  report({"disk", Level::warn, what + ": " + text(cost.bytes() - run.free_disk) + " short",
          "use --keep_checkpoints, a larger --checkpoint_freq or another --checkpoint_dir"});
}

ModelOptions small_model(uint64_t seed) {
  ModelOptions options;
  options.config = {
      .name = "tiny", .layers = 2, .heads = 2, .channels = 64, .seq_len = 32, .vocab = 8192, .padded_vocab = 8192};
  options.batch_size = 1;
  options.seq_len = 32;
  options.seed = seed;
  return options;
}

bool same_weights(Model& a, Model& b) {
  for (const ParameterTensor& tensor : a.parameters().tensors())
    if (a.read_tensor(tensor, TensorKind::weight).values != b.read_tensor(tensor, TensorKind::weight).values)
      return false;
  return true;
}

// Saves a checkpoint like a run, and loads it into a model with other weights.
void check_save(const std::string& folder, const Report& report) {
  RankGroup alone;
  const std::unique_ptr<Backend> backend = make_cpu_backend(0);
  const std::unique_ptr<Model> saved = backend->make_model(small_model(1)),
                               loaded = backend->make_model(small_model(2));
  TrainState state;
  state.step = 1;
  state.precision = to_string(Precision::fp32);
  const Stopwatch watch;
  const std::string path = CheckpointFolder(folder, "try").save(*saved, state, true, alone);
  const std::string fault = why_invalid(path);
  const bool same = fault.empty() && load_checkpoint(path, *loaded).step == 1 && same_weights(*saved, *loaded);
  const std::string what = format_bytes(static_cast<double>(bytes_of(path))) + " saved";
  if (same)
    return report({"checkpoint", Level::ok, what + ", verified and loaded in " + format_duration(watch.seconds())});
  report({"checkpoint", Level::fail,
          what + ", but reads back differently: " + (fault.empty() ? "other weights" : fault),
          "do not use this disk: choose another --checkpoint_dir", ExitCode::disk});
}

} // namespace

void check_storage(const PlannedRun* run, const std::string& checkpoint_dir, const Report& report) {
  if (run) check_room(*run, report);
  const StopSignal stop;
  stop.defer(); // remove the scratch folder before a signal ends the process
  check(report, "checkpoint", [&] {
    { const ScopedFolders could_be_made(checkpoint_dir); }
    const fs::path place = nearest_existing(checkpoint_dir);    // on the same disk, without creating folders
    for (const fs::path& folder : {place, place.parent_path()}) // the place used before --checkpoint_dir existed
      remove_leftovers(folder);
    const Scratch scratch(place);
    check_speed(run, scratch.path(), report);
    if (!stop.requested()) check_save(scratch.path(), report);
  });
  stop.answer_at_once();
}

} // namespace gpt2
