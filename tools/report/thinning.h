// Curves of any length in a bounded number of points. Nothing is dropped: a point stands for all steps of its bucket by
// their mean and by the least and the greatest value, so that a spike of one step is seen at its height.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/report/run_metrics.h"

namespace gpt2 {

struct Thinned {
  std::vector<double> mean, min, max; // NaN: no number in that bucket
};

struct ThinnedTable {
  int64_t bucket = 1;     // steps
  std::vector<Moment> at; // the last of each bucket
  std::map<std::string, Thinned> columns;
};

// The smallest of 1, 2, 5, 10, 20 ... steps whose buckets hold `at` in at most `most` points. Round and counted from
// step 1, so that the buckets of a growing run stay where they are.
int64_t bucket_steps(const std::vector<Moment>& at, size_t most);
int64_t bucket_of(int64_t step, int64_t steps);

ThinnedTable thin(const MetricTable& table, size_t most);

// Runs that differ in their seed: each is thinned to the same buckets; mean, least and greatest are those of the runs'
// means. A moment is the mean of theirs.
ThinnedTable thin_over_seeds(const std::vector<const MetricTable*>& tables, size_t most);

// Events of one kind in one bucket become one, which counts them.
std::vector<RunEvent> thin(const std::vector<RunEvent>& events, size_t most);

// Evenly chosen, the first and the last among them, so that all texts together have at most `bytes` (or there are two).
std::vector<SampleText> thin(const std::vector<SampleText>& samples, size_t bytes);

} // namespace gpt2
