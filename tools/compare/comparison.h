// Groups of runs that differ by more than their seed, each against the first: gaps at equal step, tokens and time.
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
double along(Axis axis, const Moment& moment);

struct Gap { // loss of a group less that of the first: below 0 is better
  Estimate estimate;
  double at = 0;                      // where on the axis, the mean over seeds
  double step_of_first = 0, step = 0; // where the two were then
  std::vector<double> by_seed;        // of each pair; empty: not paired
};

struct GapCurve { // mean over seeds, and two standard errors around it where there are several
  std::vector<double> x, mean, low, high;
};

struct GroupSummary {
  Estimate loss; // at Comparison::step
  Estimate tokens_per_second;
  Estimate memory_gb;  // the most in use
  double speed_ratio;  // to the first group
  std::string trouble; // "1 diverged, 2 not finished"; empty: all are done
};

struct GroupGap {                            // of a group against the first
  std::array<Gap, 3> at;                     // by axis
  std::array<GapCurve, 3> train, validation; // by axis
  bool paired = true;                        // over seeds
  bool of_validation = true;                 // of this group's and the first one's; else of their training loss
  std::vector<int64_t> seeds;                // that both have
  GapVerdict verdict;                        // of the gap at equal step
};

struct Comparison {
  std::vector<RunGroup> groups;
  std::vector<GroupSummary> summaries;
  std::vector<GroupGap> gaps;     // of groups 1, 2, ...
  bool of_validation = true;      // the groups' losses; else of the last steps' training loss
  int64_t step = 0;               // at which they were measured, the last that all have; a gap has its own
  double margin = 0;              // nats
  std::vector<std::string> notes; // what makes the comparison doubtful
};

// Throws Error(usage) if two groups have one name, or a group has a seed twice.
Comparison compare(const std::vector<RunGroup>& groups, double margin);

} // namespace gpt2
