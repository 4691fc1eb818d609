// Sequences with tokens beyond the vocabulary: the loader masks them; DataWatch reports them and ends a run that meets
// too many.
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
  // Called once per micro-batch. Returns a line to log for the first bad token of a shard. Throws Error(data) once more
  // than kMostBad of the last kWindow sequences were bad.
  std::optional<std::string> check(const HostBatch& batch);

  int64_t bad_sequences() const { return bad_; }

 private:
  static constexpr int64_t kWindow = 1000, kMostBad = 10; // above 1%: wrong data, not flipped bits
  static constexpr size_t kMostLines = 5;

  int64_t seen_ = 0, bad_ = 0;
  std::deque<int64_t> recent_;   // numbers of the bad sequences in the window
  std::set<std::string> logged_; // shards
};

} // namespace gpt2
