// The files of one checkpoint (docs/checkpoints.md).
//
//   state.h5           of rank 0
//     attributes of /  format, format_version, program_version, written; ranks if more than one
//     /config/         name, layers, heads, channels, seq_len, vocab, padded_vocab
//     /train/          TrainState
//     /model/          rank 0's StateSnapshot: its parameters and moments, guard and FP8 state
//   rank_00001.h5 ...  of the others
//     attributes of /  format, format_version, program_version, written, ranks, rank, step
//     /model/          the rank's parameters and moments
//   manifest.json      hashes of all files: engine/hdf5/manifest.h
//
// A StateSnapshot owns its memory, so write_rank_file can run on another thread; one at a time, because libhdf5 is not
// thread-safe. Readers do not use libhdf5.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/hdf5/manifest.h"
#include "engine/model/model.h"

namespace gpt2 {

constexpr double kNoLoss = 1e30; // not measured

// State of the training loop.
struct TrainState {
  int64_t step = 0;            // optimizer steps done (skipped ones count)
  int64_t loader_position = 0; // samples consumed
  uint64_t seed = 0;           // of the data order and initialization
  double best_val_loss = kNoLoss;
  double last_val_loss = kNoLoss;
  int64_t last_val_step = -1; // at which it was measured; -1: never
  int64_t tokens = 0;         // trained on so far
  bool hellaswag_due = false; // at this step, but a signal came first
  bool sample_due = false;    // likewise
  std::string run_name;
  std::string options_toml; // --print_config of the run
  std::string precision;    // "fp8", "bf16", "fp32"
  std::string fp8_guard;    // Fp8Guard::text(): its counters
  std::string fp8_lag;      // Fp8LagWatch::text()
  std::string data;         // Dataset::fingerprint() of the training data; "": unknown
  std::string validation;   // of the validation data; "": none or unknown
};

// Shown by a list of checkpoints.
struct StateHeader : ManifestSummary {
  int64_t step = 0;
  int ranks = 1; // that wrote it
};

// Writes and syncs one rank's file. Throws Error(disk).
void write_rank_file(const std::string& folder, int rank, int ranks, const GPT2Config& config, const TrainState& state,
                     const StateSnapshot& snapshot);

int64_t checkpoint_bytes(int64_t parameters); // upper bound

// Throws Error(disk) if the disk of a folder has less than checkpoint_bytes(parameters) free.
void check_room_for_checkpoint(const std::string& folder, int64_t parameters);

// Readers throw Error(checkpoint), without a hint if a file is damaged. Each file must exist and have the size in the
// manifest; each 16 MiB block is verified against its hash before any of its bytes is used.
Manifest manifest_of(const std::string& folder); // read_manifest(), or the error of a format version without one
StateHeader read_state_header(const std::string& folder); // from state.h5
StateHeader read_summary(const std::string& folder);      // the same from the manifest, if it has a summary
ManifestSummary summary_of(const GPT2Config& config, const TrainState& state);
TrainState read_train_state(const std::string& folder);
// Loads `model`, whatever the number of ranks that wrote the checkpoint. Compares the shapes before it changes the
// model.
TrainState load_state(const std::string& folder, StatefulModel& model);

// For tools: all scalars of state.h5 ("train/step", "1000"), and the model's state, merged over ranks.
struct OpenCheckpoint {
  GPT2Config config;
  std::vector<std::pair<std::string, std::string>> scalars;
  std::vector<std::string> tensors; // of the model, by name
  std::unique_ptr<StateReader> model;
};
OpenCheckpoint open_checkpoint(const std::string& folder);

} // namespace gpt2
