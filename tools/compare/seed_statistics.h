// What several seeds allow to be said about a difference: mean, standard error, verdict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/enum_names.h"

namespace gpt2 {

struct Estimate {
  double mean = 0;      // NaN: of no number
  double error = 0;     // standard error of the mean: sample deviation / sqrt(count); NaN for fewer than two
  double deviation = 0; // of one, n - 1 in the denominator; NaN for fewer than two
  int64_t count = 0;
};

Estimate estimate(const std::vector<double>& values); // NaNs are left out
// Of two sets of runs that share no seed: the difference of their means, Welch's standard error; `count` is that of the
// smaller set.
Estimate difference(const std::vector<double>& from, const std::vector<double>& to);

// How sure it is that the truth is within two standard errors: Student's t with count - 1 degrees of freedom. 0.70 for
// two, 0.82 for three, 0.88 for five.
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
  double seeds_needed = 0; // unclear: about so many; infinity: the mean stands on the margin
};

// A loss that differs by `gap`: within the margin if |mean| + 2 SE is; else better or worse if |mean| is beyond the
// margin and beyond 2 SE; else unclear.
GapVerdict judge(const Estimate& gap, double margin);

} // namespace gpt2
