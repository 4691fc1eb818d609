// Data sets by name: DATA_DIR/NAME holds train_* and val_*, as bin/prepare_data leaves them.
#pragma once

#include <string>

namespace gpt2 {

struct DatasetPatterns {
  std::string train, val; // globs; val may be empty: there is none
};

// Throws Error(usage) for a name that would lead out of DATA_DIR.
void check_dataset_name(const std::string& name);

// Throws Error(data) if there is no such folder, or nothing to train on in it.
DatasetPatterns find_dataset(const std::string& data_dir, const std::string& name);

} // namespace gpt2
