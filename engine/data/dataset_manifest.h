// dataset.json beside the shards that bin/prepare_data made: what they were made of, how long they are, and a hash of
// each. The trainer compares cheaply when it starts; verify_dataset() reads every byte.
//
//   {
//    "format": "GPT-2 token shards", "version": 1, "name": "books",
//    "tokenizer": {"name": "gpt2", "vocabulary": 50257, "xxh3_128": "..."},       of encoder.json and vocab.bpe
//    "options": {"seed": 1337, "shuffle": true, ...},
//    "sources": [{"path": "book1.txt", "bytes": 1000000, "documents": 20, "text_bytes": 1000000}, ...],
//    "documents": 40, "duplicates": 0, "bad_lines": 0, "train_tokens": 450000, "val_tokens": 4000,
//    "shards": [{"name": "train_000000.bin", "bytes": 901024, "tokens": 450000, "xxh3_128": "...", "ends": "..."}, ...]
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/shard.h"

namespace gpt2 {

struct ShardEntry {
  std::string name;  // in the folder
  int64_t bytes = 0; // of the file
  int64_t tokens = 0;
  std::string hash; // XXH3-128 of the file
  std::string ends; // XXH3-128 of its first and its last 4 KiB, which the trainer compares

  bool operator==(const ShardEntry&) const = default;
};

struct SourceEntry {
  std::string path;  // as it was given
  int64_t bytes = 0; // on the disk
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
  int64_t duplicates = 0; // left out
  int64_t bad_lines = 0;  // passed over
  int64_t train_tokens = 0, val_tokens = 0;
  std::vector<ShardEntry> shards; // of training, then of validation

  bool operator==(const DatasetManifest&) const = default;
};

std::string manifest_of_dataset(const std::string& folder); // the path of its dataset.json
std::string to_text(const DatasetManifest& manifest);
DatasetManifest parse_dataset_manifest(const std::string& text, const std::string& path); // throws Error(data)
std::optional<DatasetManifest> read_dataset_manifest(const std::string& folder);          // nullopt: there is none

ShardEntry describe_shard(const std::string& path, int64_t tokens); // reads all of it

// Are these shards what the dataset.json of their folder says, and is all there that it names? Sizes, token counts, the
// vocabulary and both ends of each file are compared; a folder without one passes, unless its making was broken off.
// Throws Error(data) that tells both sides.
void check_shards(const std::vector<std::unique_ptr<TokenSource>>& shards, int vocabulary);

// Reads every shard of a folder and compares its hash. `progress` is told the bytes read so far and in all.
// Throws Error(data) for the first one that differs, or a folder without dataset.json.
DatasetManifest verify_dataset(const std::string& folder,
                               const std::function<void(int64_t done, int64_t total)>& progress = {});

} // namespace gpt2
