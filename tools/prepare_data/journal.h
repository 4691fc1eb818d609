// The progress of a preparation on the disk: OUTPUT/.prepare/journal. After a crash or stop the next run reads the last
// journal, truncates the files in .prepare to its sizes, and resumes to the same bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/prepare_data/document_reader.h"
#include "tools/prepare_data/prepare_data.h"
#include "tools/prepare_data/shard_series.h"
#include "tools/prepare_data/text_faults.h"

namespace gpt2 {

constexpr int64_t kMostBuckets = 1000; // of a shuffle; each is an open file

enum class PrepareStage {
  encode,  // inputs to bucket files
  shard,   // bucket files to shards
  publish, // move shards into OUTPUT
};

struct PrepareJournal {
  std::string order;      // JSON object: the options and inputs that determine the result
  bool overwrite = false; // shards in OUTPUT may be replaced
  PrepareStage stage = PrepareStage::encode;

  // encode
  DocumentReader::Position position;
  std::vector<SourceEntry> sources; // with the counts so far
  std::vector<TextFaults> faults;   // by source
  int64_t bad_lines = 0;
  std::vector<int64_t> bucket_bytes;
  int64_t slice_bytes = 0; // sorted in memory at once

  int64_t val_documents = 0; // chosen for validation

  // shard
  int64_t train_limit = -1;        // training tokens; the rest is the validation set. -1: no limit
  int64_t slices = 0, records = 0; // complete slices written, and records of the next one
  int64_t documents = 0, duplicates = 0;
  ShardSeries::State train, val;

  bool operator==(const PrepareJournal&) const = default;
};

void write_journal(const std::string& output, const PrepareJournal& journal); // atomic, on the disk
std::optional<PrepareJournal> read_journal(const std::string& output);        // throws Error(data) if damaged

// Throws Error(data) unless every number is in its range and every shard has its name and size on the disk. Requires
// equal orders.
void validate(const PrepareJournal& journal, const PrepareOptions& options, const std::vector<InputFile>& inputs);

// The first difference of two orders, e.g. "seed was 1, is 2"; empty if equal.
std::string difference(const std::string& order_before, const std::string& order_now);

} // namespace gpt2
