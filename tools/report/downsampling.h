// Downsamples curves to a bounded number of points. Each point holds mean, min and max of its bucket of steps, so that
// a spike of one step keeps its height.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/report/run_metrics.h"

namespace gpt2 {

struct Statistics { // of the finite values added
  double count = 0, sum = 0, min = kMissing, max = kMissing;
  void add(double value);
  double mean() const { return count > 0 ? sum / count : kMissing; }
};

struct DownsampledColumn {
  std::vector<double> mean, min, max; // NaN: no number in the bucket
};

struct DownsampledTable {
  int64_t bucket = 1;     // steps
  std::vector<Moment> at; // the last moment of each bucket
  std::map<std::string, DownsampledColumn> columns;
};

// The smallest bucket size of 1, 2, 5, 10, 20 ... steps that yields at most `most` points. Buckets start at step 1, so
// those of a growing run do not move.
int64_t bucket_steps(const std::vector<Moment>& at, size_t most);
int64_t bucket_of(int64_t step, int64_t steps);

DownsampledTable downsample(const MetricTable& table, size_t most);

// Downsamples runs that differ in their seed to common buckets. Mean, min and max are over the runs' bucket means;
// moments are averaged.
DownsampledTable downsample_over_seeds(const std::vector<const MetricTable*>& tables, size_t most);

// Merges the events of one kind in one bucket and counts them.
std::vector<RunEvent> downsample(const std::vector<RunEvent>& events, size_t most);

// Selects samples evenly, including the first and the last, with at most `bytes` of text (at least two samples).
std::vector<SampleText> downsample(const std::vector<SampleText>& samples, size_t bytes);

} // namespace gpt2
