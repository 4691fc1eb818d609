#include "tools/common/verify_data.h"

#include <algorithm>
#include <vector>

#include "engine/data/shard_formats.h"
#include "engine/system/content_hash.h"

namespace gpt2 {

DatasetManifest verify_dataset(const std::string& folder, const std::function<void(int64_t, int64_t)>& progress) {
  auto manifest = read_dataset_manifest(folder);
  if (!manifest)
    throw Error(ExitCode::data, folder + " has no dataset.json to verify", "give a folder that bin/prepare_data made");
  int64_t total = 0, done = 0;
  for (const ShardEntry& shard : manifest->shards) total += shard.bytes;
  for (const ShardEntry& shard : manifest->shards) {
    const std::string path = folder + "/" + shard.name;
    check_shard(*open_shard(path), shard);
    if (hash_of_range(File::open(path), 0, shard.bytes) != shard.hash)
      throw Error(ExitCode::data, path + " is damaged: its hash differs from the one in dataset.json", kRemakeDataset);
    done += shard.bytes;
    if (progress) progress(done, total);
  }
  return *manifest;
}

void verify_hdf5_shard(const std::string& path) {
  const std::unique_ptr<TokenSource> shard = open_shard(path);
  const File file = File::open(path, ExitCode::data);
  char magic[kHdf5Magic.size()] = {};
  file.read_at(0, std::as_writable_bytes(std::span(magic)));
  if (std::string_view(magic, sizeof magic) != kHdf5Magic || find_hdf5_tokens(file).block_hashes.empty())
    throw Error(ExitCode::data, path + " has no dataset \"block_hashes\" to verify", "make or copy the shard again");
  std::vector<uint16_t> tokens(kHdf5BlockBytes / 2); // read() compares the hash of each block
  for (int64_t first = 0; first < shard->tokens(); first += static_cast<int64_t>(tokens.size())) {
    const int64_t count = std::min(static_cast<int64_t>(tokens.size()), shard->tokens() - first);
    shard->read(first, std::span(tokens).first(static_cast<size_t>(count)));
  }
}

} // namespace gpt2
