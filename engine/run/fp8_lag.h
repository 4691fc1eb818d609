// Lagging scales: kinds of tensors that saturate repeatedly, and the option that would help.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "engine/model/fp8_recipe.h"

namespace gpt2 {

// Its counts are stored in checkpoints: each kind of tensor is reported once in a run, however often the run resumes.
class Fp8LagWatch {
 public:
  struct Setting {
    Fp8Options fp8;
    int layers = 0;
    int64_t warmup_steps = 0;
  };

  // `text` is the output of text(); malformed lines are ignored.
  explicit Fp8LagWatch(Setting setting, const std::string& text = "");
  std::string text() const; // empty: no tensor has saturated

  // The margin leaves room for values that double in a step, so a scale that follows saturates only the outliers of a
  // rare batch: less than one value in a million, or once within the window. Growth that a scale cannot follow shows at
  // every check: two checks are enough during the warm-up.
  static constexpr double kNoticed = 1e-6;
  static constexpr int kWindow = 8; // checks
  static constexpr int kChecksInWarmUp = 2, kChecksLater = 3;
  static constexpr int64_t kStepsApart = 100; // between warnings

  struct Warning {
    std::string tensor; // the worst: "h.3/fc/grad"
    double saturated;   // share of its values
    std::string text;   // for the user: tensor, share, step, the option that would help
  };

  // Checks the statistics of `step`, the last completed step.
  std::optional<Warning> check(int64_t step, std::span<const Fp8TensorStats> stats);

  int64_t saturated_checks(const std::string& kind) const; // in the whole run
  std::string lines() const;                               // "  the scale of ...\n" for each reported kind

 private:
  struct Kind {
    uint32_t recent = 0;       // bit i: it saturated i checks ago
    int64_t checks = 0;        // that it saturated in
    float amax = 0;            // the largest of those checks
    int64_t reported_step = 0; // 0: not yet
    std::string report;
  };
  struct Finding;

  Finding worst_of(const std::string& kind, std::span<const Fp8TensorStats> stats) const;
  std::string describe(const Finding& finding, int64_t step) const;
  std::string advice(const Finding& finding, int64_t step) const;
  bool warms_up(int64_t step) const { return step <= setting_.warmup_steps; }
  bool recurs(const Kind& kind, int64_t step) const;

  Setting setting_;
  std::map<std::string, Kind> kinds_; // key "fc/grad"; those that have saturated
};

} // namespace gpt2
