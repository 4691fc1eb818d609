// What one checkpoint's state.h5 holds, and how it is written and read.
//
//   attributes of /   format, format_version, program_version, written
//   /config/          name, layers, heads, channels, seq_len, vocab, padded_vocab
//   /train/           TrainState
//   /model/           what the model's StateSnapshot writes: parameters, moments, guard, FP8 state
//
// Room to grow, with format_version 1 kept as long as old files can be read:
//   hashes        an attribute beside each dataset, written by Hdf5StateWriter::write_dataset, checked by read_floats
//   asynchronous  a StateSnapshot owns its memory, so write_state_file can run on a thread of its own; one thread at a
//                 time, because the HDF5 library must not be entered by two
//   many ranks    each rank writes its own file into the temporary folder; the rename, after a barrier, stays the one
//                 moment at which the checkpoint begins to exist
#pragma once

#include <cstdint>
#include <string>

#include "engine/model/model.h"

namespace gpt2 {

// What the loop itself needs to go on.
struct TrainState {
  int64_t step = 0;            // optimizer steps done (skipped ones count)
  int64_t loader_position = 0; // samples consumed
  uint64_t seed = 0;           // of the data order and initialisation
  double best_val_loss = 1e30;
  double last_val_loss = 1e30;
  int64_t last_val_step = -1; // at which it was measured; -1: never, or not known
  int64_t tokens = 0;         // trained on so far
  std::string run_name;
  std::string options_toml; // --print_config of the run
  std::string precision;    // "fp8", "bf16", "fp32"
};

// What a list of checkpoints shows.
struct StateHeader {
  int64_t step = 0;
  double val_loss = 0;
  int64_t val_step = -1;
  std::string precision, written;
};

// A new file, on the disk when this returns. Throws Error(disk).
void write_state_file(const std::string& path, StatefulModel& model, const TrainState& state);

// Readers throw Error(checkpoint); `hint` says what to do if the file turns out to be damaged.
StateHeader read_state_header(const std::string& path);
TrainState read_train_state(const std::string& path, const std::string& hint);
// Looks at the shape first, so that the state of another model is refused before anything is changed.
TrainState load_state_file(const std::string& path, const std::string& hint, StatefulModel& model);

} // namespace gpt2
