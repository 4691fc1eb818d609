// Reads a whole dataset and compares every hash, for bin/prepare_data --verify and bin/doctor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/data/dataset_manifest.h"

namespace gpt2 {

// Compares every shard of a folder with its hash in dataset.json. `progress` gets the bytes read so far and the total.
// Throws Error(data) for the first shard that differs and for a folder without dataset.json.
DatasetManifest verify_dataset(const std::string& folder,
                               const std::function<void(int64_t done, int64_t total)>& progress = {});

// Compares every block of an HDF5 shard with its hash. Throws Error(data) that names the first damaged block.
void verify_hdf5_shard(const std::string& path);

} // namespace gpt2
