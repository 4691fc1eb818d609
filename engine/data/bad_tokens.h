// Sequences that hold tokens beyond the vocabulary: the loader blanks them, the user hears of them here, and a run that
// meets too many of them ends.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>

#include "engine/data/loader.h"

namespace gpt2 {

class DataWatch {
 public:
  // Once per micro-batch. A line for the user, if this one holds the first bad token of a shard. Throws Error(data)
  // once more than kMostBad of the last kWindow sequences were bad.
  std::optional<std::string> look(const HostBatch& batch);

  int64_t bad_sequences() const { return bad_; }

 private:
  static constexpr int64_t kWindow = 1000, kMostBad = 10; // one percent: a few bits have flipped, or the data is wrong
  static constexpr size_t kMostLines = 5;

  int64_t seen_ = 0, bad_ = 0;
  std::deque<int64_t> recent_; // the numbers of those in the window
  std::set<std::string> told_; // shards
};

} // namespace gpt2
