#include <filesystem>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/stopwatch.h"
#include "engine/data/shard.h"
#include "engine/run/summary.h"
#include "tools/common/verify_data.h"
#include "tools/doctor/checks.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

// Shards without dataset.json: HDF5 shards contain hashes, .bin files do not.
void verify_shards(const std::string& pattern, const Report& report) {
  int64_t tokens = 0;
  int without = 0;
  for (const std::string& path : expand_globs(pattern)) {
    tokens += open_shard(path)->tokens();
    if (path.ends_with(".h5"))
      verify_hdf5_shard(path);
    else
      ++without;
  }
  const std::string what = pattern + ": " + format_count(static_cast<double>(tokens)) + " tokens";
  if (without == 0) return report({"hashes", Level::ok, what + "; all hashes match"});
  report({"hashes", Level::warn, what + "; " + counted(without, "shard") + " without a hash",
          "give a dataset folder made by bin/prepare_data"});
}

void verify_folder(const std::string& folder, const Report& report) {
  const Stopwatch watch;
  const DatasetManifest manifest = verify_dataset(folder);
  int64_t bytes = 0;
  for (const ShardEntry& shard : manifest.shards) bytes += shard.bytes;
  report({"hashes", Level::ok,
          folder + ": " + counted(static_cast<int64_t>(manifest.shards.size()), "shard") + ", " +
              format_bytes(static_cast<double>(bytes)) + ", all hashes match; read at " +
              format_bytes(static_cast<double>(bytes) / watch.seconds()) + "/s"});
}

} // namespace

void check_data(const RunData* data, const std::string& verified, const Report& report) {
  if (data && data->built_in)
    report({"data", Level::warn, "the built-in sample: generated stories, for a first try",
            "give --dataset or --train_data, see data/README.md"});
  else if (data)
    report({"data", Level::ok, data_text(*data->train, data->train_from)});
  if (data && !data->validation)
    report({"validation data", Level::warn, "none: the run will not be evaluated", "give --val_data"});
  if (verified.empty()) return;
  check(report, "hashes", [&] {
    if (fs::is_directory(verified))
      verify_folder(verified, report);
    else
      verify_shards(verified, report);
  });
}

} // namespace gpt2
