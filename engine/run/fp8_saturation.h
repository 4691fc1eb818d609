// Scales that lag: kinds of tensors that saturate again and again, and the option that would help.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "engine/model/fp8_recipe.h"

namespace gpt2 {

// What it has counted goes into checkpoints: a kind of tensor is told of once in a run, however often that is resumed.
class Fp8LagWatch {
 public:
  struct Setting {
    Fp8Options fp8;
    int layers = 0;
    int64_t warmup_steps = 0;
  };

  Fp8LagWatch() = default;
  // `text` as text() wrote it; lines that say nothing are passed over.
  explicit Fp8LagWatch(Setting setting, const std::string& text = "");
  std::string text() const; // empty: no tensor has saturated

  // A margin leaves room for a step that doubles, so that a scale that follows saturates nothing but the few outliers
  // of a rare batch: fewer than one value in a million, or not again within the window. Growth that a scale cannot
  // follow shows at every look: twice is enough while the rate climbs.
  static constexpr double kNoticed = 1e-6;
  static constexpr int kWindow = 8; // looks
  static constexpr int kLooksInWarmUp = 2, kLooksLater = 3;
  static constexpr int64_t kStepsApart = 100; // from one warning to the next

  struct Warning {
    std::string tensor; // the worst: "h.3/fc/grad"
    double saturated;   // its share
    std::string text;   // what the user reads: tensor, share, step, the option that would help
  };

  // One look at the statistics of `step`, the last one done.
  std::optional<Warning> look(int64_t step, std::span<const Fp8TensorStats> stats);

  int64_t looks(const std::string& kind) const; // at which it saturated, in the whole run
  std::string lines() const;                    // "  the scale of ...\n" for each kind that was told of

 private:
  struct Kind {
    uint32_t recent = 0; // bit i: it saturated i looks ago
    int64_t looks = 0;
    float amax = 0;        // the largest of those looks
    int64_t told_step = 0; // 0: not yet
    std::string told;
  };
  struct Finding;

  Finding worst_of(const std::string& kind, std::span<const Fp8TensorStats> stats) const;
  std::string describe(const Finding& finding, int64_t step) const;
  std::string advice(const Finding& finding, int64_t step) const;
  bool warms_up(int64_t step) const { return step <= setting_.warmup_steps; }
  bool comes_back(const Kind& kind, int64_t step) const;

  Setting setting_;
  std::map<std::string, Kind> kinds_; // by "fc/grad": those that have saturated
};

} // namespace gpt2
