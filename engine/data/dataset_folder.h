// Datasets by name: DATA_DIR/NAME holds the shards train_* and val_* of bin/prepare_data.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

struct DatasetPatterns {
  std::string train, val; // globs; empty val: no validation shards
};

// Throws Error(usage) for a name that leaves DATA_DIR.
void check_dataset_name(const std::string& name);

// Throws Error(data) for a missing folder and for one without training shards.
DatasetPatterns find_dataset(const std::string& data_dir, const std::string& name);

// True for train_NNNNNN and val_NNNNNN with .bin or .h5.
bool is_shard_name(const std::string& name);

// PREFIX_NNNNNN.EXTENSION in a folder, sorted.
std::vector<std::string> existing_shards(const std::string& folder, const std::string& prefix,
                                         const std::string& extension);

std::string prepare_folder(const std::string& output); // working folder of bin/prepare_data
bool is_being_prepared(const std::string& output);     // its journal exists
void refuse_unfinished(const std::string& output);     // throws Error(data) if it is_being_prepared()

} // namespace gpt2
