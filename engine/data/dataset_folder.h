// Data sets by name: DATA_DIR/NAME holds train_* and val_*, as bin/prepare_data leaves them.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

struct DatasetPatterns {
  std::string train, val; // globs; val may be empty: there is none
};

// Throws Error(usage) for a name that would lead out of DATA_DIR.
void check_dataset_name(const std::string& name);

// Throws Error(data) if there is no such folder, or nothing to train on in it.
DatasetPatterns find_dataset(const std::string& data_dir, const std::string& name);

// Is it the name of a shard that bin/prepare_data makes: train_NNNNNN or val_NNNNNN, .bin or .h5?
bool is_shard_name(const std::string& name);

// PREFIX_NNNNNN.EXTENSION in a folder, sorted.
std::vector<std::string> existing_shards(const std::string& folder, const std::string& prefix,
                                         const std::string& extension);

// Where bin/prepare_data works on a data set; is its journal there?
std::string prepare_folder(const std::string& output);
bool is_being_prepared(const std::string& output);

} // namespace gpt2
