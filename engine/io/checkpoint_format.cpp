#include "engine/io/checkpoint_format.h"

#include <bit>
#include <ctime>

#include "engine/base/files.h"
#include "engine/io/hdf5_state.h"

namespace gpt2 {
namespace {

const std::string kFormat = "GPT-2 training checkpoint";
constexpr int64_t kFormatVersion = 1;
const std::string kConfigGroup = "/config", kTrainGroup = "/train", kModelGroup = "/model";

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm calendar{};
  gmtime_r(&now, &calendar);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &calendar);
  return text;
}

// ---- the parts of a file ----

void write_config(Hdf5StateWriter writer, const GPT2Config& config) {
  writer.write_text("name", config.name);
  writer.write_int("layers", config.layers);
  writer.write_int("heads", config.heads);
  writer.write_int("channels", config.channels);
  writer.write_int("seq_len", config.seq_len);
  writer.write_int("vocab", config.vocab);
  writer.write_int("padded_vocab", config.padded_vocab);
}

GPT2Config read_config(Hdf5StateReader reader) {
  GPT2Config config;
  config.name = reader.read_text("name");
  config.layers = static_cast<int>(reader.read_int("layers"));
  config.heads = static_cast<int>(reader.read_int("heads"));
  config.channels = static_cast<int>(reader.read_int("channels"));
  config.seq_len = static_cast<int>(reader.read_int("seq_len"));
  config.vocab = static_cast<int>(reader.read_int("vocab"));
  config.padded_vocab = static_cast<int>(reader.read_int("padded_vocab"));
  return config;
}

void write_train_group(Hdf5StateWriter writer, const TrainState& state) {
  writer.write_int("step", state.step);
  writer.write_int("loader_position", state.loader_position);
  writer.write_int("seed", std::bit_cast<int64_t>(state.seed)); // all 64 bits; large seeds look negative in h5py
  writer.write_real("best_val_loss", state.best_val_loss);
  writer.write_real("last_val_loss", state.last_val_loss);
  writer.write_int("last_val_step", state.last_val_step);
  writer.write_int("tokens", state.tokens);
  writer.write_text("run_name", state.run_name);
  writer.write_text("options_toml", state.options_toml);
  writer.write_text("precision", state.precision);
}

int64_t read_val_step(Hdf5StateReader& reader) { // the first checkpoints of format_version 1 have none
  return reader.has("last_val_step") ? reader.read_int("last_val_step") : -1;
}

TrainState read_train_group(Hdf5StateReader reader) {
  TrainState state;
  state.step = reader.read_int("step");
  state.loader_position = reader.read_int("loader_position");
  state.seed = std::bit_cast<uint64_t>(reader.read_int("seed"));
  state.best_val_loss = reader.read_real("best_val_loss");
  state.last_val_loss = reader.read_real("last_val_loss");
  state.last_val_step = read_val_step(reader);
  state.tokens = reader.read_int("tokens");
  state.run_name = reader.read_text("run_name");
  state.options_toml = reader.read_text("options_toml");
  state.precision = reader.read_text("precision");
  return state;
}

// ---- opening one ----

void check_format(const Hdf5File& file, const std::string& path) {
  if (!file.has_attribute("format") || file.read_text_attribute("format") != kFormat) {
    throw Error(ExitCode::checkpoint, path + " is an HDF5 file, but not a checkpoint of this program",
                "give --resume a step, a folder that --list_checkpoints shows, latest or best");
  }
  const int64_t version = file.read_int_attribute("format_version");
  if (version == kFormatVersion) return;
  throw Error(ExitCode::checkpoint,
              path + " has format version " + std::to_string(version) + "; this program reads version " +
                  std::to_string(kFormatVersion),
              "resume with the version of the program that wrote it");
}

std::string describe(const GPT2Config& config) {
  return std::to_string(config.layers) + " layers, " + std::to_string(config.heads) + " heads, " +
         std::to_string(config.channels) + " channels, " + std::to_string(config.seq_len) + " positions, " +
         std::to_string(config.vocab) + " tokens (" + std::to_string(config.padded_vocab) + " rows)";
}

void check_same_shape(const std::string& path, const GPT2Config& saved, const GPT2Config& wanted) {
  if (describe(saved) == describe(wanted)) return;
  throw Error(ExitCode::checkpoint,
              path + " holds another model: " + describe(saved) + "; this run's model has " + describe(wanted),
              "resume with the shape it was trained with (--model " + saved.name + ", --seq_len " +
                  std::to_string(saved.seq_len) + "), or start a new run in another --checkpoint_dir");
}

} // namespace

void write_state_file(const std::string& path, StatefulModel& model, const TrainState& state) {
  Hdf5File file(path, Hdf5File::Mode::create, "free some disk space, or choose another --checkpoint_dir");
  file.write_attribute("format", kFormat);
  file.write_attribute("format_version", kFormatVersion);
  file.write_attribute("program_version", std::string(GPT2_VERSION));
  file.write_attribute("written", utc_now());
  write_config({file, kConfigGroup}, model.config());
  write_train_group({file, kTrainGroup}, state);
  Hdf5StateWriter writer(file, kModelGroup);
  model.snapshot()->write(writer);
  file.close();
  sync_path(path);
}

StateHeader read_state_header(const std::string& path) {
  const Hdf5File file(path, Hdf5File::Mode::read, "");
  check_format(file, path);
  Hdf5StateReader train(file, kTrainGroup);
  StateHeader header;
  header.step = train.read_int("step");
  header.val_loss = train.read_real("last_val_loss");
  header.val_step = read_val_step(train);
  header.precision = train.read_text("precision");
  header.written = file.read_text_attribute("written");
  return header;
}

TrainState read_train_state(const std::string& path, const std::string& hint) {
  const Hdf5File file(path, Hdf5File::Mode::read, hint);
  check_format(file, path);
  return read_train_group({file, kTrainGroup});
}

TrainState load_state_file(const std::string& path, const std::string& hint, StatefulModel& model) {
  const Hdf5File file(path, Hdf5File::Mode::read, hint);
  check_format(file, path);
  const TrainState state = read_train_group({file, kTrainGroup});
  check_same_shape(path, read_config({file, kConfigGroup}), model.config());
  Hdf5StateReader reader(file, kModelGroup);
  model.load_state(reader);
  return state;
}

} // namespace gpt2
