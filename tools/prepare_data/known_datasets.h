// Data sets that bin/prepare_data downloads by name: addresses and defaults.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace gpt2 {

struct KnownDataset {
  const char* name;
  const char* repository; // OWNER/NAME on the Hugging Face Hub; null: `address` is a single file
  const char* path;       // of the files in the repository, or the file's name
  const char* address;
  double val_fraction;
  const char* separator; // of .txt
  int64_t tokens;        // about, for --plan before the download
};

const KnownDataset* find_known_dataset(const std::string& name); // null: unknown
std::string known_dataset_names();                               // "a, b and c"

struct DownloadHooks {
  std::function<void(int64_t done, int64_t total)> progress = {}; // bytes; total 0: unknown
  std::function<bool()> stop = {};
};

// The path for --input: below `from` if that is a folder; else below `folder`, after downloading missing files from the
// hub or the mirror `from`. Empty: stopped. Throws Error(data), Error(disk).
std::string fetch_dataset(const KnownDataset& dataset, const std::string& from, const std::string& folder,
                          const DownloadHooks& hooks);

} // namespace gpt2
