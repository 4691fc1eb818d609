#include "engine/checkpoint/format.h"

#include <bit>
#include <filesystem>
#include <limits>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/reader.h"
#include "engine/hdf5/state_writer.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

const std::string kFormat = "GPT-2 training checkpoint", kRankFormat = kFormat + ", part of a rank";
// 3: AdamW; 4: Muon, whose matrices have one moment. Program version 0.1 wrote 1 and 2, which had no manifest.
constexpr int64_t kAdamW = 3, kMuon = 4;
const std::string kConfigGroup = "config", kTrainGroup = "train", kModelGroup = "model";

std::string utc_now() { return date_text("%Y-%m-%dT%H:%M:%SZ", gmtime_r); }

// ---- the parts of a file ----

constexpr std::pair<const char*, int GPT2Config::*> kExtents[] = {
    {"layers", &GPT2Config::layers},   {"heads", &GPT2Config::heads}, {"channels", &GPT2Config::channels},
    {"seq_len", &GPT2Config::seq_len}, {"vocab", &GPT2Config::vocab}, {"padded_vocab", &GPT2Config::padded_vocab}};

void write_config(Hdf5StateWriter writer, const GPT2Config& config) {
  writer.write_text("name", config.name);
  for (const auto& [name, extent] : kExtents) writer.write_int(name, config.*extent);
}

GPT2Config read_config(const Hdf5StateReader& reader) {
  GPT2Config config;
  config.name = reader.read_text("name");
  for (const auto& [name, extent] : kExtents)
    config.*extent = static_cast<int>(read_count(reader, name, std::numeric_limits<int>::max()));
  return config;
}

void write_train_group(Hdf5StateWriter writer, const TrainState& state) {
  writer.write_int("step", state.step);
  writer.write_int("loader_position", state.loader_position);
  writer.write_int("seed", std::bit_cast<int64_t>(state.seed)); // all 64 bits; seeds from 2^63 look negative in h5py
  writer.write_real("best_val_loss", state.best_val_loss);
  writer.write_real("last_val_loss", state.last_val_loss);
  writer.write_int("last_val_step", state.last_val_step);
  writer.write_int("tokens", state.tokens);
  writer.write_text("run_name", state.run_name);
  writer.write_text("options_toml", state.options_toml);
  writer.write_text("precision", state.precision);
  if (!state.fp8_guard.empty()) writer.write_text("fp8_guard", state.fp8_guard);
  if (!state.fp8_lag.empty()) writer.write_text("fp8_lag", state.fp8_lag);
  if (state.hellaswag_due) writer.write_int("hellaswag_due", 1);
  if (state.sample_due) writer.write_int("sample_due", 1);
  writer.write_text("data", state.data);
  if (!state.validation.empty()) writer.write_text("validation", state.validation);
}

[[noreturn]] void refuse(const std::string& name, const std::string& value) {
  throw Error(ExitCode::checkpoint, "the checkpoint's " + name + " is " + value);
}

// NaN is never the best loss, so a file with one is damaged.
double read_best_loss(const Hdf5StateReader& reader) {
  const double loss = reader.read_real("best_val_loss");
  if (!(loss >= 0 && loss <= kNoLoss)) refuse("best_val_loss", std::to_string(loss));
  return loss;
}

// The last loss of a diverged run may be NaN.
double measured(double loss) { return loss >= 0 && loss <= kNoLoss ? loss : kNoLoss; }

TrainState read_train_group(const Hdf5StateReader& reader) {
  TrainState state;
  state.step = read_count(reader, "step");
  state.loader_position = read_count(reader, "loader_position");
  state.seed = std::bit_cast<uint64_t>(reader.read_int("seed"));
  state.best_val_loss = read_best_loss(reader);
  state.last_val_loss = measured(reader.read_real("last_val_loss"));
  state.last_val_step = reader.read_int("last_val_step");
  if (state.last_val_step < -1 || state.last_val_step > state.step)
    refuse("last_val_step", std::to_string(state.last_val_step) + " at step " + std::to_string(state.step));
  state.tokens = read_count(reader, "tokens");
  state.run_name = reader.read_text("run_name");
  state.options_toml = reader.read_text("options_toml");
  state.precision = reader.read_text("precision");
  if (reader.has("fp8_guard")) state.fp8_guard = reader.read_text("fp8_guard");
  if (reader.has("fp8_lag")) state.fp8_lag = reader.read_text("fp8_lag");
  state.hellaswag_due = reader.has("hellaswag_due");
  state.sample_due = reader.has("sample_due");
  if (reader.has("data")) state.data = reader.read_text("data");
  if (reader.has("validation")) state.validation = reader.read_text("validation");
  return state;
}

// A step updates the weights at most once.
void check_updates(StateReader& model, int64_t step) {
  if (!model.has("adam_step")) return;
  const int64_t updates = read_count(model, "adam_step");
  if (updates > step) refuse("adam_step", std::to_string(updates) + " at step " + std::to_string(step));
}

// ---- opening ----

void check_version(const std::string& path, int64_t version) {
  if (version >= kAdamW && version <= kMuon) return;
  throw Error(ExitCode::checkpoint,
              path + " has format version " + std::to_string(version) + "; this program reads versions " +
                  std::to_string(kAdamW) + " and " + std::to_string(kMuon),
              version < kAdamW ? "program version 0.1 wrote it: resume it with that version, or start a new run"
                               : "use the version of the program that wrote it");
}

void check_format(const Hdf5StateFile& file, const std::string& format) {
  if (!file.has_attribute("format") || file.read_text_attribute("format") != format) {
    throw Error(ExitCode::checkpoint, file.path() + " is an HDF5 file, but not a checkpoint of this program",
                "give a step, latest, best, or a folder that bin/ckpt list shows");
  }
  check_version(file.path(), file.read_int_attribute("format_version"));
}

// A state.h5 without a manifest: its version alone is read, unverified.
void refuse_old_format(const std::string& path) {
  const File file = File::open(path, ExitCode::checkpoint);
  try {
    const auto attributes = read_hdf5(hdf5_bytes(file), [](const std::string&) { return false; }).attributes;
    const auto found = attributes.find("format_version");
    if (found == attributes.end()) return;
    const auto& [type, shape, value] = found->second;
    if (type.kind == Hdf5Type::Kind::integer && element_count(shape) == 1) check_version(path, to_integer(type, value));
  } catch (const Hdf5Damage&) { // the missing manifest is the error
  }
}

// The files of one checkpoint, each block verified before its bytes are used.
class CheckpointFiles {
 public:
  explicit CheckpointFiles(std::string folder)
      : folder_(std::move(folder)),
        manifest_(manifest_of(folder_)),
        cache_(std::make_shared<BlockCache>(manifest_.ranks)) {}

  std::unique_ptr<Hdf5StateFile> state_file() const {
    auto file = open(0);
    check_format(*file, kFormat);
    return file;
  }

  int ranks(const Hdf5StateFile& state_file) const {
    const int64_t ranks = state_file.has_attribute("ranks") ? state_file.read_int_attribute("ranks") : 1;
    if (ranks != manifest_.ranks) state_file.fail("ranks", "it is " + std::to_string(ranks));
    return manifest_.ranks;
  }

  // Throws if the file belongs to another rank or another checkpoint.
  std::unique_ptr<Hdf5StateFile> file_of(int rank, int ranks, int64_t step) const {
    auto file = open(rank);
    check_format(*file, kRankFormat);
    const std::pair<const char*, int64_t> expected[] = {{"rank", rank}, {"ranks", ranks}, {"step", step}};
    for (const auto& [name, value] : expected) {
      const int64_t found = file->read_int_attribute(name);
      if (found != value) file->fail(name, "it is " + std::to_string(found) + ", not " + std::to_string(value));
    }
    return file;
  }

 private:
  std::unique_ptr<Hdf5StateFile> open(int rank) const {
    return std::make_unique<Hdf5StateFile>(VerifiedFile(folder_, manifest_.of_rank(rank), cache_));
  }

  std::string folder_;
  Manifest manifest_;
  std::shared_ptr<BlockCache> cache_;
};

CheckpointReader open_model(const CheckpointFiles& checkpoint, std::unique_ptr<Hdf5StateFile> state_file, int64_t step,
                            CheckpointReader::Values values) {
  const int ranks = checkpoint.ranks(*state_file);
  std::vector<std::unique_ptr<Hdf5StateFile>> files;
  files.push_back(std::move(state_file));
  for (int rank = 1; rank < ranks; ++rank) files.push_back(checkpoint.file_of(rank, ranks, step));
  return {std::move(files), kModelGroup, values};
}

std::string describe(const GPT2Config& config) {
  return blocks_text(config) + ", " + std::to_string(config.seq_len) + " positions, " + std::to_string(config.vocab) +
         " tokens (" + std::to_string(config.padded_vocab) + " rows)";
}

void check_same_shape(const std::string& folder, const GPT2Config& saved, const GPT2Config& wanted) {
  if (describe(saved) == describe(wanted)) return;
  throw Error(ExitCode::checkpoint,
              folder + " holds another model: " + describe(saved) + "; this run's model has " + describe(wanted),
              "resume with the shape it was trained with (--model " + saved.name + ", --seq_len " +
                  std::to_string(saved.seq_len) + "), or start a new run in another --checkpoint_dir");
}

} // namespace

void write_rank_file(const std::string& folder, int rank, int ranks, const GPT2Config& config, const TrainState& state,
                     const StateSnapshot& snapshot) {
  const std::string path = rank_file(folder, rank);
  Hdf5NewFile file(path, "free some disk space, or choose another --checkpoint_dir");
  file.write_attribute("format", rank == 0 ? kFormat : kRankFormat);
  file.write_attribute("format_version", snapshot.of_muon() ? kMuon : kAdamW);
  file.write_attribute("program_version", std::string(GPT2_VERSION));
  file.write_attribute("written", utc_now());
  if (ranks > 1) file.write_attribute("ranks", int64_t{ranks});
  if (rank == 0) {
    write_config({file, kConfigGroup}, config);
    write_train_group({file, kTrainGroup}, state);
  } else {
    file.write_attribute("rank", int64_t{rank});
    file.write_attribute("step", state.step);
  }
  Hdf5StateWriter writer(file, kModelGroup);
  snapshot.write_own(writer);
  if (rank == 0) snapshot.write_common(writer);
  file.close();
  sync_path(path);
}

// Weights and two moments in FP32, and 1 MiB for headers and scalars.
int64_t checkpoint_bytes(int64_t parameters) { return parameters * 12 + (1 << 20); }

void check_room_for_checkpoint(const std::string& folder, int64_t parameters) {
  const int64_t needed = checkpoint_bytes(parameters);
  const int64_t available = free_disk_space(folder);
  if (available >= needed) return;
  throw Error(ExitCode::disk,
              "a checkpoint in " + folder + " needs " + format_bytes(static_cast<double>(needed)) + ", and " +
                  format_bytes(static_cast<double>(available)) + " are free",
              "free some disk space, delete old checkpoints, or choose another --checkpoint_dir");
}

Manifest manifest_of(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(manifest_path(folder), ignored)) refuse_old_format(rank_file(folder, 0));
  return read_manifest(folder);
}

StateHeader read_state_header(const std::string& folder) {
  const CheckpointFiles checkpoint(folder);
  const auto file = checkpoint.state_file();
  const Hdf5StateReader train(*file, kTrainGroup);
  StateHeader header;
  header.step = read_count(train, "step");
  header.val_loss = measured(train.read_real("last_val_loss"));
  header.val_step = train.read_int("last_val_step");
  header.precision = train.read_text("precision");
  header.model = Hdf5StateReader(*file, kConfigGroup).read_text("name");
  header.written = file->read_text_attribute("written");
  header.ranks = checkpoint.ranks(*file);
  return header;
}

StateHeader read_summary(const std::string& folder) {
  const Manifest manifest = manifest_of(folder);
  if (!manifest.summary) return read_state_header(folder);
  StateHeader header{*manifest.summary, manifest.step, manifest.ranks};
  header.val_loss = measured(header.val_loss);
  return header;
}

ManifestSummary summary_of(const GPT2Config& config, const TrainState& state) {
  return {.written = utc_now(),
          .model = to_valid_utf8(config.name),
          .precision = to_valid_utf8(state.precision),
          .val_loss = measured(state.last_val_loss),
          .val_step = state.last_val_step};
}

TrainState read_train_state(const std::string& folder) {
  return read_train_group({*CheckpointFiles(folder).state_file(), kTrainGroup});
}

TrainState load_state(const std::string& folder, StatefulModel& model) {
  const CheckpointFiles checkpoint(folder);
  auto file = checkpoint.state_file();
  const TrainState state = read_train_group({*file, kTrainGroup});
  check_same_shape(folder, read_config({*file, kConfigGroup}), model.config());
  CheckpointReader reader = open_model(checkpoint, std::move(file), state.step, CheckpointReader::Values::checked);
  check_updates(reader, state.step);
  model.load_state(reader);
  return state;
}

OpenCheckpoint open_checkpoint(const std::string& folder) {
  const CheckpointFiles checkpoint(folder);
  auto file = checkpoint.state_file();
  OpenCheckpoint open;
  open.config = read_config({*file, kConfigGroup});
  for (const std::string& group : {kConfigGroup, kTrainGroup, kModelGroup})
    for (auto& scalar : Hdf5StateReader(*file, group).scalars()) open.scalars.push_back(std::move(scalar));
  const Hdf5StateReader train(*file, kTrainGroup);
  const int64_t step = read_count(train, "step");
  auto model =
      std::make_unique<CheckpointReader>(open_model(checkpoint, std::move(file), step, CheckpointReader::Values::any));
  open.tensors = model->tensors();
  open.model = std::move(model);
  return open;
}

} // namespace gpt2
