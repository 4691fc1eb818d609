// manifest.json of a checkpoint: its files, their sizes, and a hash of each 16 MiB block.
//
//   {
//    "format": "GPT-2 training checkpoint, manifest", "version": 2,
//    "step": 1000, "ranks": 2,
//    "written": "2026-11-15T14:09:31Z", "model": "gpt2", "precision": "fp8", "val_loss": 3.25, "val_step": 1000,
//    "block_bytes": 16777216,
//    "files": [{"name": "state.h5", "bytes": 20000000, "xxh3_128": ["0123...", "4567..."]}, ...],
//    "xxh3_128": "89ab..."                                 of this text without this line
//   }
//
// Version 1 has no "written" to "val_step". The text is canonical: a manifest that does not serialize to its own bytes
// is damaged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/system/content_hash.h"

namespace gpt2 {

constexpr int kMostRanks = 99999;                           // five digits in a file's name
std::string rank_file(const std::string& folder, int rank); // FOLDER/state.h5 of rank 0, FOLDER/rank_00001.h5, ...

constexpr int64_t kBlockBytes = int64_t{16} << 20; // unit of hashing and reading

struct FileHashes {
  std::string name;                // in the checkpoint's folder
  int64_t bytes = 0;               // of the file
  std::vector<std::string> blocks; // hash_of() each block; the last is shorter

  int64_t block_bytes(size_t block) const;
  bool operator==(const FileHashes&) const = default;
};

// Shown by a list of checkpoints, which opens no other file.
struct ManifestSummary {
  std::string written; // UTC, "2026-11-15T14:09:31Z"
  std::string model, precision;
  double val_loss = 0;   // kNoLoss: not evaluated
  int64_t val_step = -1; // at which it was measured, at most the checkpoint's step; -1: never
  bool operator==(const ManifestSummary&) const = default;
};

struct Manifest {
  int64_t step = 0;
  int ranks = 1;
  std::optional<ManifestSummary> summary = std::nullopt; // nullopt: version 1
  std::vector<FileHashes> files;                         // state.h5, rank_00001.h5, ..., options.toml

  const FileHashes& of_rank(int rank) const { return files[static_cast<size_t>(rank)]; }
  bool operator==(const Manifest&) const = default;
};

// ---- hashing ----

FileHashes hash_file(const std::string& path); // on several threads; throws Error(disk)
// "PATH is damaged: bytes 16777216 to 33554431 do not match their hash in manifest.json"
Error damaged_block(const std::string& path, const FileHashes& hashes, size_t block);

// ---- writing: each rank hashes its own file, rank 0 writes the manifest ----

std::string manifest_entry(const std::string& path); // hash_file() as JSON, to be sent to rank 0
// `entries`: by rank. Hashes options.toml, writes and syncs. Throws Error(disk). Without a summary: version 1.
void write_manifest(const std::string& folder, int64_t step, const std::vector<std::string>& entries,
                    const std::optional<ManifestSummary>& summary = std::nullopt);

// ---- reading ----

std::string manifest_path(const std::string& folder);
std::string to_text(const Manifest& manifest);
Manifest parse_manifest(const std::string& text,
                        const std::string& path); // throws Error(checkpoint), which names `path`

// The manifest of a checkpoint, compared with its folder: every file exists and has its size, and there is no other
// HDF5 file. Opens no other file. Throws Error(checkpoint).
Manifest read_manifest(const std::string& folder);

} // namespace gpt2
