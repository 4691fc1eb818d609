#include "tools/report/downsampling.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace gpt2;

namespace {

MetricTable steps_up_to(int64_t count, int64_t every = 1) {
  MetricTable table;
  for (int64_t step = every; step <= count; step += every) {
    table.at.push_back({step, 100.0 * static_cast<double>(step), static_cast<double>(step)});
    table.columns["loss"].push_back(3.0);
  }
  return table;
}

} // namespace

TEST_CASE("what fits stays as it is, row by row") {
  MetricTable table = steps_up_to(100);
  table.columns["loss"][7] = 9;
  const DownsampledTable downsampled = downsample(table, 100);
  CHECK(downsampled.bucket == 1);
  CHECK(downsampled.at.size() == 100);
  CHECK(downsampled.columns.at("loss").mean == table.columns["loss"]);
  CHECK(downsample(MetricTable(), 100).at.empty());
}

TEST_CASE("a spike of one step is seen at its height, whatever the number of steps") {
  MetricTable table = steps_up_to(30'000);
  table.columns["loss"][17'776] = 11;
  table.columns["loss"][17'779] = 1;
  const DownsampledTable downsampled = downsample(table, 3000);
  CHECK(downsampled.bucket == 10);
  REQUIRE(downsampled.at.size() == 3000);
  const DownsampledColumn& loss = downsampled.columns.at("loss");
  CHECK(loss.max[1777] == 11);
  CHECK(loss.min[1777] == 1);
  CHECK(loss.mean[1777] == doctest::Approx((8 * 3 + 11 + 1) / 10.0));
  CHECK(loss.max[1776] == 3);
  CHECK(downsampled.at[1777].step == 17'780); // the last of its bucket
}

TEST_CASE("buckets are round, and stay where they are while a run grows") {
  CHECK(bucket_steps(steps_up_to(100).at, 100) == 1);
  CHECK(bucket_steps(steps_up_to(101).at, 100) == 2);
  CHECK(bucket_steps(steps_up_to(201).at, 100) == 5);
  CHECK(bucket_steps(steps_up_to(501).at, 100) == 10);
  CHECK(bucket_steps(steps_up_to(1001).at, 100) == 20);
  CHECK(bucket_steps(steps_up_to(30'000, 250).at, 100) == 500); // lines that come every 250 steps
  const DownsampledTable early = downsample(steps_up_to(450), 100), late = downsample(steps_up_to(500), 100);
  for (size_t i = 0; i < early.at.size(); ++i) CHECK(early.at[i].step == late.at[i].step);
}

TEST_CASE("steps without a number leave a gap only where there is no other") {
  MetricTable table = steps_up_to(40);
  const double none = std::nan("");
  table.columns["loss"][0] = none;                            // one of the two steps of a bucket
  table.columns["loss"][2] = table.columns["loss"][3] = none; // both
  const DownsampledColumn loss = downsample(table, 20).columns.at("loss");
  CHECK(loss.mean[0] == 3);
  CHECK(std::isnan(loss.mean[1]));
  CHECK(std::isnan(loss.max[1]));
  CHECK(loss.mean[2] == 3);
}

TEST_CASE("many events of a kind become few that count them; others stay") {
  std::vector<RunEvent> events;
  for (int64_t step = 1; step <= 1000; ++step)
    events.push_back({{step, 0, 0}, {step, 0, 0}, "skip", std::to_string(step)});
  events.push_back({{500, 0, 0}, {500, 0, 0}, "resume", "on here"});
  const std::vector<RunEvent> downsampled = downsample(events, 100);
  CHECK(downsampled.size() <= 100);
  int64_t skips = 0, resumes = 0;
  for (const RunEvent& event : downsampled) (event.kind == "skip" ? skips : resumes) += event.count;
  CHECK(skips == 1000);
  CHECK(resumes == 1);
  CHECK(downsampled[0].from.step == 1);
  CHECK(downsampled[0].to.step == 20);
  CHECK(downsampled[0].text == "1");
}

TEST_CASE("of too many samples the first and the last stay") {
  std::vector<SampleText> samples;
  for (int64_t step = 1; step <= 500; ++step) samples.push_back({{step, 0, 0}, std::string(1000, 'a')});
  const std::vector<SampleText> downsampled = downsample(samples, 50'000);
  CHECK(downsampled.size() > 20);
  CHECK(downsampled.size() <= 50);
  CHECK(downsampled.front().at.step == 1);
  CHECK(downsampled.back().at.step == 500);
  CHECK(downsample(samples, 10).size() == 2);
  CHECK(downsample(std::vector<SampleText>(), 10).empty());
}
