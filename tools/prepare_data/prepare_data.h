// Text to a data set: shuffled training and validation shards and their dataset.json, in two passes.
//
//   encode  read the inputs in order, encode on all cores, append to bucket files by each document's random key
//   shard   read bucket after bucket, sort by key, write training and validation shards
//
// Memory is bounded. The bytes of the result depend on inputs and options only, not on threads, memory or
// interruptions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/dataset_manifest.h"
#include "engine/text/tokenizer.h"
#include "tools/prepare_data/document_reader.h"
#include "tools/prepare_data/text_faults.h"

namespace gpt2 {

// Tokens: a sequence of GPT-2 and its last target. A smaller validation set would stop a trainer of the default
// --seq_len.
constexpr int64_t kLeastValidation = 1025;

struct PrepareOptions {
  DocumentReader::Options documents;
  bool skip_bad_lines = false;
  bool strict = false; // refuse raw text that has faults: Error(data)

  std::string output;                 // folder
  std::string name;                   // for dataset.json
  std::string format = "bin";         // or "h5"
  int64_t shard_tokens = 100'000'000; // per shard, the last one shorter
  double val_fraction = 0;            // of the documents, evenly spaced; 0: no validation shards
  uint64_t seed = 1337;               // of the shuffle
  bool shuffle = true;                // false: documents keep the order of the input
  bool deduplicate = false;           // keep the first of equal documents; all that are split into chunks stay
  bool overwrite = false;             // replace existing shards, discard an unfinished run

  int threads = 1;
  int64_t memory = int64_t{256} << 20; // bytes of documents sorted at once
  double journal_seconds = 10;         // between two saved positions of a run
};

struct PrepareProgress {
  bool resumed = false;        // from an earlier run
  bool sharding = false;       // second pass
  int64_t done = 0, total = 0; // bytes of the input files, or of the buckets; total 0: unknown
  int64_t text_bytes = 0;      // encoded by this process
  int64_t documents = 0;
};

struct PrepareHooks {
  std::function<void(const PrepareProgress&)> progress = {}; // every few megabytes
  std::function<bool()> stop = {}; // polled several times a second; true: save the journal and return
};

struct PrepareReport {
  bool finished = true;                // false: stopped; the same call resumes
  bool resumed = false;                // from an earlier run
  bool val_is_tail = false;            // no document was chosen for validation: the last tokens are the validation set
  std::vector<TextFaults> faults = {}; // by manifest.sources
  DatasetManifest manifest = {};
};

// Writes train_000000.bin ..., val_000000.bin ... and dataset.json into OUTPUT; an end-of-text token precedes each
// document. Works in OUTPUT/.prepare and moves the shards when all are complete. Existing shards are an Error(usage)
// without `overwrite`. After an Error OUTPUT has no shard of this call; .prepare keeps the journal to resume from. The
// caller holds a lock: one process per folder.
PrepareReport prepare_data(const Tokenizer& tokenizer, const PrepareOptions& options, const PrepareHooks& hooks = {});

} // namespace gpt2
