// The recipe's state machine on the GPU against the CPU's, step by step.
#include "kernels/fp8_update.h"

#include <array>

#include "engine/model/fp8_recipe.h"
#include "tests/gpu/fp8_test.h"

namespace gpt2 {
namespace {

constexpr int kLayers = 2;
constexpr int kCount = fp8_tensor_count(kLayers);

// The CPU's recipe and the GPU's, fed with the same amaxes.
class Recipes {
 public:
  Recipes(TestDevice& device, const Fp8Options& options)
      : device_(device),
        options_(options),
        cpu_(options, kLayers),
        metas_(start(cpu_)),
        seen_(kCount),
        amaxes_(std::vector<uint32_t>(kCount)),
        measured_(std::vector<uint32_t>(kCount)),
        seen_amaxes_(kCount),
        history_(std::vector<float>(cpu_.histories().begin(), cpu_.histories().end())),
        format_max_(maxima(cpu_)),
        applied_(std::vector<int64_t>{0}),
        step_(1) {}

  Fp8Scales scales() {
    return {.metas = metas_,
            .amaxes = amaxes_,
            .measured = measured_,
            .seen = seen_,
            .seen_amaxes = seen_amaxes_,
            .history = history_,
            .format_max = format_max_,
            .applied_steps = applied_,
            .count = kCount,
            .history_length = options_.amax_history,
            .margin = options_.margin,
            .interval = options_.interval};
  }

  // What producers would have metered; the counters get marks of their own.
  void observe(const std::vector<float>& amaxes) {
    std::vector<Fp8TensorMeta> now = metas_.download();
    std::vector<uint32_t> bits(kCount);
    for (int id = 0; id < kCount; ++id) {
      cpu_.counts(id).amax = amaxes[static_cast<size_t>(id)];
      bits[static_cast<size_t>(id)] = std::bit_cast<uint32_t>(amaxes[static_cast<size_t>(id)]);
      now[static_cast<size_t>(id)].saturated = static_cast<unsigned long long>(id);
      now[static_cast<size_t>(id)].flushed = static_cast<unsigned long long>(2 * id);
    }
    metas_.upload(now);
    amaxes_.upload(bits);
  }

  // What the first pass of current scaling would have left.
  void measure(const std::vector<float>& amaxes) {
    std::vector<uint32_t> bits(kCount);
    for (size_t id = 0; id < bits.size(); ++id) bits[id] = std::bit_cast<uint32_t>(amaxes[id]);
    measured_.upload(bits);
  }

  void end_step(bool applied) {
    StepScalars step{};
    step.verdict = applied ? Verdict::applied : Verdict::skipped_nonfinite;
    step_.upload({step});
    before_ = metas_.download();
    amaxes_before_ = amaxes_.download();
    cpu_.end_step(applied);
    fp8_end_step(device_.cuda, scales(), step_);
  }

  void calibrate(const std::vector<float>& amaxes) {
    observe(std::vector<float>(kCount));
    measure(amaxes);
    for (int id = 0; id < kCount; ++id) {
      if (!cpu_.delayed(id)) continue;
      cpu_.calibrate(id, amaxes[static_cast<size_t>(id)]);
      fp8_set_current_scale(device_.cuda, scales(), {.id = id, .shared = false, .noted = true});
    }
    cpu_.end_calibration();
    fp8_end_calibration(device_.cuda, scales());
  }

  // Scales and histories have the CPU's bits, and the metas are fresh.
  void check() {
    const std::vector<Fp8TensorMeta> metas = metas_.download();
    const std::vector<uint32_t> bits = amaxes_.download();
    const std::vector<float> history = history_.download();
    const size_t length = static_cast<size_t>(options_.amax_history);
    for (int id = 0; id < kCount; ++id) {
      CAPTURE(id);
      const Fp8TensorMeta& meta = metas[static_cast<size_t>(id)];
      CHECK(meta.scale == cpu_.scale(id));
      CHECK(meta.scale_inv == 1.0f / cpu_.scale(id));
      CHECK(bits[static_cast<size_t>(id)] == 0);
      CHECK(meta.saturated == 0);
      CHECK(meta.flushed == 0);
      if (!cpu_.delayed(id)) continue;
      const auto begin = history.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(id) * length);
      CHECK(std::equal(begin, begin + static_cast<std::ptrdiff_t>(length),
                       cpu_.histories().subspan(static_cast<size_t>(id) * length).begin()));
    }
    CHECK(applied_.download()[0] == cpu_.applied_steps());
  }

  // What the step saw, with the scales that were in force then.
  void check_seen() {
    const std::vector<Fp8TensorMeta> seen = seen_.download();
    CHECK(std::memcmp(seen.data(), before_.data(), seen.size() * sizeof(Fp8TensorMeta)) == 0);
    CHECK(seen_amaxes_.download() == amaxes_before_);
  }

  std::vector<Fp8TensorMeta> metas() { return metas_.download(); }
  std::vector<uint32_t> amaxes() { return amaxes_.download(); }
  float format_max(int id) { return format_max_.download()[static_cast<size_t>(id)]; }

 private:
  static std::vector<Fp8TensorMeta> start(const Fp8RecipeState& recipe) {
    std::vector<Fp8TensorMeta> metas;
    for (int id = 0; id < kCount; ++id)
      metas.push_back({.scale_inv = 1.0f / recipe.scale(id), .scale = recipe.scale(id), .saturated = 0, .flushed = 0});
    return metas;
  }
  static std::vector<float> maxima(const Fp8RecipeState& recipe) {
    std::vector<float> maxima;
    for (int id = 0; id < kCount; ++id) maxima.push_back(recipe.delayed(id) ? fp8_max(recipe.format(id)) : 0.0f);
    return maxima;
  }

  TestDevice& device_;
  Fp8Options options_;
  Fp8RecipeState cpu_;
  DeviceBuffer<Fp8TensorMeta> metas_, seen_;
  DeviceBuffer<uint32_t> amaxes_, measured_, seen_amaxes_;
  DeviceBuffer<float> history_, format_max_;
  DeviceBuffer<int64_t> applied_;
  DeviceBuffer<StepScalars> step_;
  std::vector<Fp8TensorMeta> before_;
  std::vector<uint32_t> amaxes_before_;
};

// Amaxes of many sizes; some steps a tensor is zero, infinite, not a number or too small for any scale.
std::vector<float> amaxes_of(int step) {
  std::vector<float> amaxes;
  for (int id = 0; id < kCount; ++id) {
    const uint64_t index = static_cast<uint64_t>(step * kCount + id);
    float amax = static_cast<float>(std::exp(4 * Rng(1).normal(index)));
    switch (Rng(2).bits(index) % 16) {
      case 0:
        amax = 0;
        break;
      case 1:
        amax = std::numeric_limits<float>::infinity();
        break;
      case 2:
        amax = std::numeric_limits<float>::quiet_NaN();
        break;
      case 3:
        amax = 1e-40f;
        break;
      default:
        break;
    }
    amaxes.push_back(amax);
  }
  return amaxes;
}

} // namespace

TEST_CASE("scales and histories follow the CPU's bit for bit, through skipped steps, intervals and margins") {
  TestDevice device;
  for (const Fp8FormatChoice format : {Fp8FormatChoice::hybrid, Fp8FormatChoice::e4m3, Fp8FormatChoice::e5m2}) {
    for (const auto& [history, interval, margin] : {std::array{16, 1, 0}, {4, 3, 2}, {1, 1, 1}, {5, 7, 0}}) {
      CAPTURE(history);
      CAPTURE(interval);
      Fp8Options options;
      options.format = format;
      options.amax_history = history;
      options.interval = interval;
      options.margin = margin;
      options.lm_head = interval != 3;
      Recipes recipes(device, options);
      recipes.calibrate(amaxes_of(0));
      recipes.check();
      for (int step = 1; step <= (small_shapes_only() ? 9 : 25); ++step) {
        CAPTURE(step);
        recipes.observe(amaxes_of(step));
        recipes.end_step(step % 6 != 2);
        recipes.check_seen();
        recipes.check();
      }
      recipes.calibrate(amaxes_of(26)); // amid a run, as after two skipped steps
      recipes.check();
      recipes.observe(amaxes_of(27));
      recipes.end_step(true);
      recipes.check();
    }
  }
}

TEST_CASE("current scaling: the scale is of what was measured, counters go on, the step's amax sees the largest") {
  TestDevice device;
  Fp8Options options;
  options.format = Fp8FormatChoice::e5m2; // activations have an E4M3 copy for the weight gradient
  options.margin = 1;
  Recipes recipes(device, options);
  const int id = Fp8RecipeState(options, kLayers).id(1, Fp8Site::fc, Fp8Role::act);
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  recipes.observe(std::vector<float>(kCount, 2.0f)); // of the micro-batches before
  for (const bool shared : {false, true}) {
    for (const bool noted : {false, true}) {
      for (const float measured : {1.0f, 3.0f}) {
        CAPTURE(shared);
        CAPTURE(noted);
        CAPTURE(measured);
        recipes.observe(std::vector<float>(kCount, 2.0f));
        recipes.measure(std::vector<float>(kCount, measured));
        const std::vector<Fp8TensorMeta> before = recipes.metas();
        fp8_set_current_scale(device.cuda, recipes.scales(), {.id = id, .shared = shared, .noted = noted});
        const std::vector<Fp8TensorMeta> after = recipes.metas();
        const std::vector<uint32_t> amaxes = recipes.amaxes();
        for (int other = 0; other < kCount; ++other) {
          const Fp8TensorMeta &now = after[static_cast<size_t>(other)], &then = before[static_cast<size_t>(other)];
          const bool set = other == id || (shared && other == id + 1);
          CHECK(now.scale == (set ? fp8_scale(measured, recipes.format_max(other), 1, 1.0f) : then.scale));
          CHECK(now.scale_inv == 1.0f / now.scale);
          CHECK(now.saturated == then.saturated);
          CHECK(now.flushed == then.flushed);
          CHECK(amaxes[static_cast<size_t>(other)] == bits(set && noted ? std::max(2.0f, measured) : 2.0f));
        }
      }
    }
  }
  CHECK(recipes.format_max(id) == 57344.0f);
  CHECK(recipes.format_max(id + 1) == 448.0f);
}

} // namespace gpt2
