// Text to a data set: shuffled training and validation shards with their dataset.json, in two passes.
//
//   encode  inputs, read in order, encoded on all cores, into bucket files by a random key of each document
//   deal    bucket after bucket, sorted by key, into shards of training and of validation
//
// Memory is bounded, and the result is a function of the inputs and options alone: neither threads nor memory nor being
// killed and going on change a byte of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/dataset_manifest.h"
#include "engine/text/tokenizer.h"
#include "tools/prepare_data/document_reader.h"

namespace gpt2 {

struct PrepareOptions {
  DocumentReader::Options documents;
  bool skip_bad_lines = false;

  std::string output;                 // folder
  std::string name;                   // for dataset.json
  std::string format = "bin";         // or "h5"
  int64_t shard_tokens = 100'000'000; // per shard, the last one shorter
  double val_fraction = 0;            // of the documents, evenly spread; 0: no validation shards
  uint64_t seed = 1337;               // of the shuffle
  bool shuffle = true;                // no: documents stay in the order of the input
  bool deduplicate = false;           // of equal documents the first one stays; those that are cut into pieces all do
  bool overwrite = false;             // replace what is there, and start anew what was begun

  int threads = 1;
  int64_t memory = int64_t{256} << 20; // bytes of documents that are sorted at once
  double journal_seconds = 10;         // from one point that a killed run goes on from to the next
};

struct PrepareProgress {
  bool went_on = false;        // with what an earlier run began
  bool dealing = false;        // or encoding
  int64_t done = 0, total = 0; // bytes of the input files, or of the buckets; total 0: nobody knows
  int64_t text_bytes = 0;      // encoded by this process
  int64_t documents = 0;
};

struct PrepareHooks {
  std::function<void(const PrepareProgress&)> progress = {}; // every few megabytes
  std::function<bool()> stop = {}; // asked several times a second; true: write down where we are and leave
};

struct PrepareReport {
  bool finished = true; // no: it was stopped, and goes on when called again
  bool went_on = false; // from an earlier one
  DatasetManifest manifest = {};
};

// Writes train_000000.bin ..., val_000000.bin ... and dataset.json into the folder; each document follows an
// end-of-text token. Works in OUTPUT/.prepare and moves the shards to their place when all are whole. Refuses to mix
// with shards from an earlier run: Error(usage), unless overwrite replaces them. After an Error no shard of this call
// is in the folder; what was journaled stays in .prepare to go on from. One process a folder: the caller holds a lock.
PrepareReport prepare_data(const Tokenizer& tokenizer, const PrepareOptions& options, const PrepareHooks& hooks = {});

} // namespace gpt2
