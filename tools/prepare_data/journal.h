// How far the making of a data set has come, on the disk: OUTPUT/.prepare/journal. Whatever ends the program, the next
// one reads the last journal, cuts the files in .prepare back to what it says, and goes on to the same bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/prepare_data/document_reader.h"
#include "tools/prepare_data/prepare_data.h"
#include "tools/prepare_data/shard_series.h"

namespace gpt2 {

constexpr int64_t kMostBuckets = 1000; // of a shuffle: open files

enum class PrepareStage {
  encode,  // inputs to buckets
  deal,    // buckets to shards
  publish, // shards to their place
};

struct PrepareJournal {
  std::string order;      // a JSON object: options and inputs, all that the result depends on
  bool overwrite = false; // shards that are in OUTPUT may be replaced
  PrepareStage stage = PrepareStage::encode;

  // encode
  DocumentReader::Position position;
  std::vector<SourceEntry> sources; // their counts so far
  int64_t bad_lines = 0;
  std::vector<int64_t> bucket_bytes;
  int64_t slice_bytes = 0; // that are sorted in memory at once

  // deal
  int64_t slices = 0, records = 0; // whole ones dealt, and records of the next one
  int64_t documents = 0, duplicates = 0;
  ShardSeries::State train, val;

  bool operator==(const PrepareJournal&) const = default;
};

void write_journal(const std::string& output, const PrepareJournal& journal); // atomic, on the disk
std::optional<PrepareJournal> read_journal(const std::string& output);        // throws Error(data) if it is damaged

// Throws Error(data) unless this can be the journal of a run with these options and inputs: every number in its range,
// every shard by its own name and on the disk. Call it when the orders are equal.
void validate(const PrepareJournal& journal, const PrepareOptions& options, const std::vector<InputFile>& inputs);

// "seed was 1, is 2": the first difference of two orders; empty: none.
std::string difference(const std::string& order_before, const std::string& order_now);

} // namespace gpt2
