// What the files of one checkpoint hold, and how they are written and read (docs/checkpoints.md).
//
//   state.h5           of rank 0
//     attributes of /  format, format_version, program_version, written; ranks where they are several
//     /config/         name, layers, heads, channels, seq_len, vocab, padded_vocab
//     /train/          TrainState
//     /model/          what the rank's StateSnapshot writes: its parameters and moments, and guard and FP8 state
//   rank_00001.h5 ...  of the others
//     attributes of /  format, format_version, program_version, written, ranks, rank, step
//     /model/          the rank's parameters and moments
//   manifest.json      hashes of all files: engine/hdf5/manifest.h
//
// A StateSnapshot owns its memory, so write_rank_file can run on a thread of its own; one thread writes at a time,
// because the HDF5 library must not be entered by two. Reading does not enter it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/hdf5/manifest.h"
#include "engine/model/model.h"

namespace gpt2 {

constexpr double kNoLoss = 1e30; // none was measured yet

// What the loop itself needs to go on.
struct TrainState {
  int64_t step = 0;            // optimizer steps done (skipped ones count)
  int64_t loader_position = 0; // samples consumed
  uint64_t seed = 0;           // of the data order and initialisation
  double best_val_loss = kNoLoss;
  double last_val_loss = kNoLoss;
  int64_t last_val_step = -1; // at which it was measured; -1: never, or not known
  int64_t tokens = 0;         // trained on so far
  bool hellaswag_due = false; // at this step, and not scored: a signal came first
  bool sample_due = false;    // the same of a sample
  std::string run_name;
  std::string options_toml; // --print_config of the run
  std::string precision;    // "fp8", "bf16", "fp32"
  std::string fp8_guard;    // Fp8Guard::text(): the trouble it has counted so far
  std::string fp8_lag;      // Fp8LagWatch::text()
  std::string data;         // Dataset::fingerprint() of what it was trained on; "": not known
  std::string validation;   // on what the losses were measured; "": nothing, or not known
};

// What a list of checkpoints shows.
struct StateHeader {
  int64_t step = 0;
  double val_loss = 0;
  int64_t val_step = -1;
  int ranks = 1; // that wrote it
  std::string model, precision, written;
};

// One rank's file, new, and on the disk when this returns. Throws Error(disk).
void write_rank_file(const std::string& folder, int rank, int ranks, const GPT2Config& config, const TrainState& state,
                     const StateSnapshot& snapshot);

int64_t checkpoint_bytes(int64_t parameters); // room that one of a model with so many takes, a little more than it will

// Throws Error(disk) if a folder has no room for a checkpoint of a model with so many parameters.
void check_room_for_checkpoint(const std::string& folder, int64_t parameters);

// Readers throw Error(checkpoint), without a hint where a file is damaged. Where there is a manifest, no byte is used
// whose hash has not been compared with it, and every file is there and as long as it should be.
StateHeader read_state_header(const std::string& folder); // from state.h5
StateHeader read_summary(const std::string& folder);      // the same from the manifest alone, where it has a summary
// What the manifest says of a state that is saved now.
ManifestSummary summary_of(const GPT2Config& config, const TrainState& state);
TrainState read_train_state(const std::string& folder);
// What `model` wants of it, whatever the ranks that wrote it. Looks at the shape first, so that the state of another
// model is refused before anything is changed.
TrainState load_state(const std::string& folder, StatefulModel& model);

// For whoever looks at a checkpoint and is no model: everything scalar in state.h5 ("train/step", "1000"), and the
// model's state as one, whatever the ranks.
struct OpenCheckpoint {
  GPT2Config config;
  std::vector<std::pair<std::string, std::string>> scalars;
  std::vector<std::string> tensors; // of the model, by name
  std::unique_ptr<StateReader> model;
};
OpenCheckpoint open_checkpoint(const std::string& folder);

} // namespace gpt2
