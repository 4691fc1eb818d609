// Text files to token shards: read in order, encoded on many threads, written in order. Memory is bounded by a few
// megabytes a thread and two shards (training and validation), whatever the size of the input.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/document_reader.h"
#include "engine/data/tokenizer.h"

namespace gpt2 {

struct TokenizeOptions {
  DocumentReader::Options documents;
  bool skip_bad_lines = false;

  std::string output;                 // folder
  std::string format = "bin";         // or "h5"
  int64_t shard_tokens = 100'000'000; // per shard, the last one shorter
  double val_fraction = 0;            // of the documents, evenly spread; 0: no validation shards
  bool overwrite = false;

  int threads = 1;
};

struct TokenizeReport {
  int64_t documents = 0, bytes = 0; // of text, without what was passed over
  int64_t train_tokens = 0, val_tokens = 0;
  int64_t bad_lines = 0; // passed over
  std::vector<std::string> shards;
};

// Writes train_000000.bin ... and, with validation, val_000000.bin ... into the folder; each document follows an
// end-of-text token. Refuses to mix with shards of these names from an earlier run: Error(usage), unless overwrite
// removes them. All or nothing: after an Error no shard of this call is left. `progress` is called after every few
// megabytes.
TokenizeReport tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options,
                              const std::function<void(const TokenizeReport&)>& progress = {});

} // namespace gpt2
