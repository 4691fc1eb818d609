// Statistics over seeds: mean, standard error, verdict on a difference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/enum_names.h"

namespace gpt2 {

struct Estimate {
  double mean = 0;      // NaN: no values
  double error = 0;     // standard error of the mean: sample deviation / sqrt(count); NaN for fewer than two
  double deviation = 0; // sample standard deviation (n - 1); NaN for fewer than two
  int64_t count = 0;
};

Estimate estimate(const std::vector<double>& values); // ignores NaN
// For two sets without a common seed: difference of the means with Welch's standard error; `count` of the smaller set.
Estimate difference(const std::vector<double>& from, const std::vector<double>& to);

// Confidence of mean +- 2 standard errors: Student's t with count - 1 degrees of freedom. 0.70 for two, 0.82 for three,
// 0.88 for five.
double coverage_of_two_errors(int64_t count);

enum class Outcome { within, better, worse, unclear, one_seed, diverged, no_number };

constexpr auto names_of(Outcome) {
  using enum Outcome;
  return std::to_array<EnumName<Outcome>>({{within, "within"},
                                           {better, "better"},
                                           {worse, "worse"},
                                           {unclear, "unclear"},
                                           {one_seed, "one_seed"},
                                           {diverged, "diverged"},
                                           {no_number, "no_number"}});
}

struct GapVerdict {
  Outcome outcome = Outcome::no_number;
  double seeds_needed = 0; // if unclear; infinity: the mean equals the margin
};

// within: |mean| + 2 SE <= margin. better or worse: |mean| > margin and |mean| > 2 SE. Otherwise unclear.
GapVerdict judge(const Estimate& gap, double margin);

} // namespace gpt2
