// dataset.json next to the shards of bin/prepare_data: sources, options, token counts and a hash per shard. The trainer
// compares sizes and both ends of each file at start; verify_dataset() (tools/common/verify_data.h) reads every byte.
//
//   {
//    "format": "GPT-2 token shards", "version": 1, "name": "books",
//    "tokenizer": {"name": "gpt2", "vocabulary": 50257, "xxh3_128": "..."},       of encoder.json + vocab.bpe
//    "options": {"seed": 1337, "shuffle": true, ...},
//    "sources": [{"path": "book1.txt", "bytes": 1000000, "documents": 20, "text_bytes": 1000000}, ...],
//    "documents": 40, "duplicates": 0, "bad_lines": 0, "train_tokens": 450000, "val_tokens": 4000,
//    "shards": [{"name": "train_000000.bin", "bytes": 901024, "tokens": 450000, "xxh3_128": "...", "ends": "..."}, ...]
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/shard.h"
#include "engine/system/files.h"

namespace gpt2 {

struct ShardEntry {
  std::string name; // in the folder
  int64_t bytes = 0;
  int64_t tokens = 0;
  std::string hash; // XXH3-128 of the file
  std::string ends; // XXH3-128 of the first and last 4 KiB, which the trainer compares

  bool operator==(const ShardEntry&) const = default;
};

struct SourceEntry {
  std::string path;  // as given on the command line
  int64_t bytes = 0; // on disk, compressed or not
  int64_t documents = 0, text_bytes = 0;

  bool operator==(const SourceEntry&) const = default;
};

struct DatasetManifest {
  std::string name;
  std::string tokenizer_hash;
  int vocabulary = 0;
  std::string options; // a JSON object
  std::vector<SourceEntry> sources;
  int64_t documents = 0;  // in the shards
  int64_t duplicates = 0; // removed
  int64_t bad_lines = 0;  // skipped
  int64_t train_tokens = 0, val_tokens = 0;
  std::vector<ShardEntry> shards; // training, then validation

  bool operator==(const DatasetManifest&) const = default;
};

inline constexpr char kRemakeDataset[] = // hint
    "make or copy the dataset again; without its dataset.json nothing is compared";

inline std::string manifest_of_dataset(const std::string& folder) { return folder + "/dataset.json"; }
std::string to_text(const DatasetManifest& manifest);
DatasetManifest parse_dataset_manifest(const std::string& text, const std::string& path); // throws Error(data)
std::optional<DatasetManifest> read_dataset_manifest(const std::string& folder);          // nullopt: no dataset.json

std::string hash_of_ends(const File& file); // XXH3-128 of the first and last 4 KiB

// Compares size, token count and both ends of a shard with its entry; reads 8 KiB. Throws Error(data).
void check_shard(const TokenSource& shard, const ShardEntry& entry);

// check_shard() for all shards, by the dataset.json of each folder; also that every shard of dataset.json exists and
// that the vocabulary fits. A folder without dataset.json passes, unless bin/prepare_data has not finished it. Throws
// Error(data) with the found and the expected value.
void check_shards(const std::vector<std::unique_ptr<TokenSource>>& shards, int vocabulary);

} // namespace gpt2
