// Data sets that bin/prepare_data knows by name: where they are, and how they are best prepared.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace gpt2 {

struct KnownDataset {
  const char* name;
  const char* repository; // of the hub, OWNER/NAME; null: `address` is the one file
  const char* path;       // of the files in the repository, or the file's name
  const char* address;
  double val_fraction;
  const char* separator; // of .txt
};

std::span<const KnownDataset> known_datasets();
const KnownDataset* find_known_dataset(const std::string& name); // null: none of that name
std::string known_dataset_names();                               // "a, b and c"

struct DownloadHooks {
  std::function<void(int64_t done, int64_t total)> progress = {}; // bytes; total 0: nobody knows
  std::function<bool()> stop = {};
};

// Where its text lies, for --input: below `from`, if that is a folder; else below `folder`, where it is downloaded to
// from the hub or the mirror `from`, or is already. Empty: it was stopped. Throws Error(data), Error(disk).
std::string fetch_dataset(const KnownDataset& dataset, const std::string& from, const std::string& folder,
                          const DownloadHooks& hooks);

} // namespace gpt2
