// One checkpoint's state.h5, as CheckpointFolder and load_checkpoint see it.
//
//   attributes of /   format, format_version, program_version, written
//   /config/          name, layers, heads, channels, seq_len, vocab, padded_vocab
//   /train/           TrainState
//   /model/           what Model::save_state writes
//
// Room to grow, with format_version 1 kept as long as old files can be read:
//   hashes        an attribute beside each dataset, written by Hdf5StateWriter::write_dataset, checked by read_floats
//   asynchronous  Model::save_state into a StateWriter that copies to host memory; the rest of CheckpointFolder::save
//   on
//                 one thread, because the HDF5 library must not be entered by two
//   many ranks    each rank writes its own file into the temporary folder; the rename, after a barrier, stays the one
//                 moment at which the checkpoint begins to exist
#pragma once

#include <cstdint>
#include <string>

#include "engine/io/checkpoint.h"

namespace gpt2 {

struct CheckpointHeader {
  int64_t step = 0;
  double val_loss = 0;
  int64_t val_step = -1;
  std::string precision, written;
};

std::string state_file_of(const std::string& checkpoint_folder);
bool is_complete(const std::string& checkpoint_folder); // it holds a state file

// The step of a folder named step_00001000, or -1.
int64_t step_of(const std::string& checkpoint_folder);
std::string step_folder_name(int64_t step);

// A new file, on the disk when this returns. Throws Error(disk).
void write_checkpoint_file(const std::string& path, StatefulModel& model, const TrainState& state);
CheckpointHeader read_checkpoint_header(const std::string& checkpoint_folder); // throws Error(checkpoint)

} // namespace gpt2
