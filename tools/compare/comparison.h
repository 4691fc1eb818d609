// Compares groups of runs with the first group: loss differences (gaps) at equal step, tokens and time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/compare/run_groups.h"
#include "tools/compare/seed_statistics.h"
#include "tools/report/run_metrics.h"

namespace gpt2 {

enum class Axis { step, tokens, seconds };
constexpr std::array<Axis, 3> kAxes = {Axis::step, Axis::tokens, Axis::seconds};
double coordinate(Axis axis, const Moment& moment);

struct Gap { // loss of a group minus loss of the first group: negative is better
  Estimate estimate;
  double at = 0;                      // position on the axis, mean over seeds
  double step_of_first = 0, step = 0; // of the two groups at that position
  std::vector<double> by_seed;        // one per pair; empty: not paired
};

struct GapCurve { // mean over seeds, plus and minus two standard errors
  std::vector<double> x, mean, low, high;
};

struct GroupSummary {
  Estimate loss; // at Comparison::step
  Estimate tokens_per_second;
  Estimate memory_gb;  // peak
  double speed_ratio;  // relative to the first group
  std::string trouble; // "1 diverged, 2 stopped early"; empty: all finished
};

struct GroupGap {                            // a group compared with the first
  std::array<Gap, 3> at;                     // by axis
  std::array<GapCurve, 3> train, validation; // by axis
  bool paired = true;                        // over seeds
  bool of_validation = true;                 // validation loss; else training loss
  std::vector<int64_t> seeds;                // common to both groups
  GapVerdict verdict;                        // on the gap at equal step
};

struct Comparison {
  std::vector<RunGroup> groups;
  std::vector<GroupSummary> summaries;
  std::vector<GroupGap> gaps;     // of groups 1, 2, ...
  bool of_validation = true;      // summaries: validation loss; else mean training loss of the last steps
  int64_t step = 0;               // of the summaries' losses: the last step that all runs have
  double margin = 0;              // nats
  std::vector<std::string> notes; // reasons to doubt the comparison
};

// Throws Error(usage) if two groups share a name or a group has a seed twice.
Comparison compare(const std::vector<RunGroup>& groups, double margin);

} // namespace gpt2
