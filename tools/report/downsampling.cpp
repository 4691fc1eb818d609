#include "tools/report/downsampling.h"

#include <algorithm>
#include <cmath>

namespace gpt2 {
namespace {

// [begin, end) rows of each bucket
std::vector<std::pair<size_t, size_t>> ranges(const std::vector<Moment>& at, int64_t steps) {
  std::vector<std::pair<size_t, size_t>> out;
  for (size_t i = 0; i < at.size(); ++i) {
    if (i == 0 || bucket_of(at[i].step, steps) != bucket_of(at[i - 1].step, steps))
      out.push_back({i, i + 1});
    else
      out.back().second = i + 1;
  }
  return out;
}

int64_t next_round(int64_t steps) { // 1, 2, 5, 10
  int64_t power = 1;
  while (power * 10 <= steps) power *= 10;
  return steps / power == 1 ? 2 * power : steps / power == 2 ? 5 * power : 10 * power;
}

Statistics statistics_of(const std::vector<double>& values, size_t begin, size_t end) {
  Statistics out;
  for (size_t i = begin; i < end; ++i) out.add(values[i]);
  return out;
}

void append(DownsampledColumn& column, const Statistics& bucket) {
  column.mean.push_back(bucket.mean());
  column.min.push_back(bucket.min);
  column.max.push_back(bucket.max);
}

} // namespace

void Statistics::add(double value) {
  if (!std::isfinite(value)) return;
  sum += value;
  ++count;
  min = std::fmin(min, value);
  max = std::fmax(max, value);
}

int64_t bucket_of(int64_t step, int64_t steps) { return (std::max<int64_t>(step, 1) - 1) / steps; }

int64_t bucket_steps(const std::vector<Moment>& at, size_t most) {
  if (at.size() <= most) return 1;
  int64_t steps = 1;
  while (ranges(at, steps).size() > std::max<size_t>(most, 1)) steps = next_round(steps);
  return steps;
}

DownsampledTable downsample(const MetricTable& table, size_t most) {
  DownsampledTable out;
  out.bucket = bucket_steps(table.at, most);
  const auto rows = table.at.size() <= most ? std::vector<std::pair<size_t, size_t>>() : ranges(table.at, out.bucket);
  if (rows.empty()) { // one row per point
    out.at = table.at;
  } else {
    for (const auto& [begin, end] : rows) out.at.push_back(table.at[end - 1]);
  }
  for (const auto& [name, values] : table.columns) {
    DownsampledColumn& column = out.columns[name];
    for (size_t i = 0; i < out.at.size(); ++i) {
      const auto [begin, end] = rows.empty() ? std::pair(i, i + 1) : rows[i];
      append(column, statistics_of(values, begin, end));
    }
  }
  return out;
}

DownsampledTable downsample_over_seeds(const std::vector<const MetricTable*>& tables, size_t most) {
  struct Bucket {
    Moment sum;
    double count = 0;
    std::map<std::string, Statistics> means; // over runs
  };
  std::map<int64_t, Bucket> buckets; // by index
  DownsampledTable out;
  for (const MetricTable* table : tables) out.bucket = std::max(out.bucket, bucket_steps(table->at, most));
  for (const MetricTable* table : tables) {
    const auto rows = ranges(table->at, out.bucket);
    for (const auto& [begin, end] : rows) {
      const Moment& at = table->at[end - 1];
      Bucket& bucket = buckets[bucket_of(at.step, out.bucket)];
      bucket.sum.step = std::max(bucket.sum.step, at.step);
      bucket.sum.tokens += at.tokens;
      bucket.sum.seconds += at.seconds;
      ++bucket.count;
      for (const auto& [name, values] : table->columns) {
        bucket.means[name].add(statistics_of(values, begin, end).mean());
      }
    }
  }
  for (const MetricTable* table : tables)
    for (const auto& [name, values] : table->columns) out.columns[name];
  for (const auto& [number, bucket] : buckets) {
    out.at.push_back({bucket.sum.step, bucket.sum.tokens / bucket.count, bucket.sum.seconds / bucket.count});
    for (auto& [name, column] : out.columns) {
      const auto found = bucket.means.find(name);
      append(column, found == bucket.means.end() ? Statistics() : found->second);
    }
  }
  return out;
}

std::vector<RunEvent> downsample(const std::vector<RunEvent>& events, size_t most) {
  std::map<std::string, std::vector<RunEvent>> by_kind;
  for (const RunEvent& event : events) by_kind[event.kind].push_back(event);
  std::vector<RunEvent> out;
  for (const auto& [kind, all] : by_kind) {
    std::vector<Moment> at;
    for (const RunEvent& event : all) at.push_back(event.from);
    const int64_t steps = bucket_steps(at, most / by_kind.size());
    if (steps == 1) {
      out.insert(out.end(), all.begin(), all.end());
      continue;
    }
    for (const auto& [begin, end] : ranges(at, steps)) {
      RunEvent joined = all[begin];
      joined.to = all[end - 1].to;
      joined.count = static_cast<int64_t>(end - begin);
      out.push_back(joined);
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const RunEvent& a, const RunEvent& b) { return a.from.step < b.from.step; });
  return out;
}

std::vector<SampleText> downsample(const std::vector<SampleText>& samples, size_t bytes) {
  const auto chosen = [&](size_t count) {
    std::vector<SampleText> out;
    for (size_t i = 0; i < count; ++i)
      out.push_back(samples[i * (samples.size() - 1) / std::max<size_t>(count - 1, 1)]);
    return out;
  };
  const auto size_of = [](const std::vector<SampleText>& texts) {
    size_t size = 0;
    for (const SampleText& sample : texts) size += sample.text.size();
    return size;
  };
  std::vector<SampleText> out = samples;
  for (size_t count = samples.size(); count > 2 && size_of(out) > bytes;)
    out = chosen(count = std::max<size_t>(2, count * 3 / 4));
  return out;
}

} // namespace gpt2
