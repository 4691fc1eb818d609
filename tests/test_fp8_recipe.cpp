// Delayed scaling as a state machine: when scales move, when they must not, and what survives a checkpoint.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "engine/model/fp8_recipe.h"
#include "kernels/layernorm_fp8.h"
#include "tests/expect_error.h"
#include "tests/memory_state.h"

using namespace gpt2;
using gpt2::testing::MemoryState;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One tensor of a calibrated recipe stands for all.
struct Watched {
  Fp8RecipeState recipe;
  int id;

  explicit Watched(const Fp8Options& options, float calibrated_amax = 1.0f)
      : recipe(options, 2), id(recipe.id(1, Fp8Site::fc, Fp8Role::act)) {
    recipe.begin_step();
    recipe.calibrate(id, calibrated_amax);
    recipe.end_calibration();
  }

  float step(float amax, bool applied = true) {
    recipe.begin_step();
    recipe.counts(id).amax = amax;
    recipe.end_step(applied);
    return recipe.scale(id);
  }
};

// No headroom: scales that are easy to check by eye.
Fp8Options plain_options() {
  Fp8Options options;
  options.margin = 0;
  return options;
}

std::vector<float> history_of(const Watched& watched) {
  const auto length = static_cast<size_t>(watched.recipe.options().amax_history);
  const auto history = watched.recipe.histories().subspan(static_cast<size_t>(watched.id) * length, length);
  return {history.begin(), history.end()};
}

} // namespace

TEST_CASE("formats by recipe and role; dlogits are E5M2 in every recipe") {
  using enum Fp8Format;
  const auto check = [](Fp8FormatChoice format, Fp8Format act, Fp8Format act_t, Fp8Format weight, Fp8Format grad) {
    Fp8Options options;
    options.format = format;
    const Fp8RecipeState recipe(options, 3);
    for (const Fp8Site site : {Fp8Site::qkv, Fp8Site::proj, Fp8Site::fc, Fp8Site::fcproj}) {
      CHECK(recipe.format(recipe.id(2, site, Fp8Role::act)) == act);
      CHECK(recipe.format(recipe.id(2, site, Fp8Role::act_t)) == act_t);
      CHECK(recipe.format(recipe.id(2, site, Fp8Role::weight)) == weight);
      CHECK(recipe.format(recipe.id(2, site, Fp8Role::grad)) == grad);
    }
    CHECK(recipe.format(recipe.id(0, Fp8Site::lm_head, Fp8Role::act)) == act);
    CHECK(recipe.format(recipe.id(0, Fp8Site::lm_head, Fp8Role::grad)) == e5m2);
    CHECK(recipe.scale(recipe.id(0, Fp8Site::lm_head, Fp8Role::grad)) == kDlogitsScale);
    CHECK(recipe.activation_copy() == (format == Fp8FormatChoice::e5m2));
  };
  check(Fp8FormatChoice::hybrid, e4m3, e4m3, e4m3, e5m2);
  check(Fp8FormatChoice::e4m3, e4m3, e4m3, e4m3, e4m3);
  check(Fp8FormatChoice::e5m2, e5m2, e4m3, e4m3, e5m2);
}

TEST_CASE("ids are dense and distinct") {
  const Fp8RecipeState recipe(Fp8Options{}, 2);
  std::vector<int> seen(static_cast<size_t>(fp8_tensor_count(2)), 0);
  const auto visit = [&](int layer, Fp8Site site) {
    for (const Fp8Role role : {Fp8Role::act, Fp8Role::act_t, Fp8Role::weight, Fp8Role::grad}) {
      seen.at(static_cast<size_t>(recipe.id(layer, site, role))) += 1;
    }
  };
  for (int layer = 0; layer < 2; ++layer) {
    for (const Fp8Site site : {Fp8Site::qkv, Fp8Site::proj, Fp8Site::fc, Fp8Site::fcproj}) visit(layer, site);
  }
  visit(0, Fp8Site::lm_head);
  for (const int count : seen) CHECK(count == 1);
}

TEST_CASE("shapes that FP8 products on a GPU cannot take are refused with a way out") {
  CHECK_NOTHROW(check_fp8_shape(768, 1024));
  CHECK_NOTHROW(check_fp8_shape(64, 16));
  const auto refused = [](int channels, int seq_len) {
    const Error error = expect_error([&] { check_fp8_shape(channels, seq_len); });
    CHECK(error.code() == ExitCode::usage);
    return std::string(error.what()) + "|" + error.hint();
  };
  CHECK(refused(72, 64) ==
        "FP8 on a GPU needs --channels in multiples of 16, not 72|choose --channels 64 or 80, or --precision bf16");
  CHECK(refused(64, 100) ==
        "FP8 on a GPU needs --seq_len in multiples of 16, not 100|choose --seq_len 96 or 112, or --precision bf16");
  CHECK_NOTHROW(check_fp8_shape(kMaxFp8Channels, 1024));
  CHECK(refused(2064, 1024) ==
        "FP8 on a GPU has kernels for at most 2048 channels, not 2064|choose fewer --channels, or --precision bf16");
  CHECK(refused(64, 8) ==
        "FP8 on a GPU needs --seq_len in multiples of 16, not 8|choose --seq_len 16, or --precision bf16");
}

TEST_CASE("the scale follows the largest amax of the history") {
  Fp8Options options = plain_options();
  options.amax_history = 3;
  Watched watched(options, 2.0f);
  CHECK(watched.recipe.scale(watched.id) == 224.0f);
  CHECK(watched.step(4.0f) == 112.0f);
  CHECK(watched.step(1.0f) == 112.0f); // 4 is remembered
  CHECK(watched.step(1.0f) == 112.0f);
  CHECK(watched.step(1.0f) == 448.0f); // 4 is forgotten after three steps
}

TEST_CASE("a history of one is the last step alone") {
  Fp8Options options = plain_options();
  options.amax_history = 1;
  Watched watched(options, 8.0f);
  CHECK(watched.step(4.0f) == 112.0f);
  CHECK(watched.step(1.0f) == 448.0f);
}

TEST_CASE("current scaling: of all tensors, of one kind, or in the first applied steps; recomputing never measures") {
  using enum Fp8ScalingRecipe;
  using enum Fp8Role;
  const auto measured = [](const Fp8RecipeState& recipe, Fp8Pass pass) {
    std::string roles;
    for (const auto& [role, letter] : {std::pair{act, 'a'}, {act_t, 't'}, {weight, 'w'}, {grad, 'g'}}) {
      if (recipe.measures(pass, role)) roles += letter;
    }
    return roles;
  };
  for (const auto& [scaling, roles] : {std::pair<Fp8ScalingRecipe, std::string>{delayed, ""},
                                       {current, "atwg"},
                                       {current_grads, "g"},
                                       {current_activations, "at"},
                                       {current_weights, "w"}}) {
    CAPTURE(roles);
    Fp8Options options;
    options.scaling = scaling;
    options.current_steps = 2;
    Watched watched(options);
    Fp8RecipeState& recipe = watched.recipe;
    for (const bool applied : {true, false, true}) { // a skipped step does not count
      CHECK(recipe.in_current_steps());
      CHECK(measured(recipe, Fp8Pass::training) == "atwg");
      CHECK(measured(recipe, Fp8Pass::inference) == "atwg");
      CHECK(measured(recipe, Fp8Pass::recomputing).empty());
      CHECK(recipe.measures_in_training());
      watched.step(8.0f, applied);
    }
    CHECK_FALSE(recipe.in_current_steps());
    CHECK(measured(recipe, Fp8Pass::training) == roles);
    CHECK(measured(recipe, Fp8Pass::inference) == roles);
    CHECK(measured(recipe, Fp8Pass::recomputing).empty());
    CHECK(measured(recipe, Fp8Pass::calibrating) == "atwg");
    CHECK(recipe.measures_in_training() == !roles.empty());
    CHECK(recipe.scale(watched.id) == 448.0f / 8 / 2); // from the history that those steps have left
  }
}

TEST_CASE("an inactive recipe: updates count, not steps; decided as a step begins; what it ends with is calibration") {
  Fp8Options options;
  options.bf16_steps = 2;
  Fp8RecipeState recipe(options, 3);
  for (const bool applied : {true, false, true}) {
    recipe.begin_step();
    CHECK(recipe.inactive());
    CHECK_FALSE(recipe.calibration_due());
    CHECK_FALSE(recipe.quantized_head());
    CHECK_FALSE(recipe.quantized_block(1));
    recipe.end_step(applied);
    CHECK(recipe.inactive());
    CHECK(recipe.stats().empty());
  }
  recipe.begin_step();
  CHECK_FALSE(recipe.inactive());
  CHECK(recipe.calibration_due());
  CHECK(recipe.quantized_head());
  CHECK(recipe.quantized_block(1));
  CHECK(recipe.applied_steps() == 0); // of FP8
  recipe.end_calibration();
  CHECK_FALSE(recipe.calibration_due());

  options.bf16_layers = {1};
  options.lm_head = false;
  Fp8RecipeState some(options, 3);
  some.set_inactive(false);
  CHECK(some.quantized_block(0));
  CHECK_FALSE(some.quantized_block(1));
  CHECK_FALSE(some.quantized_head());
}

TEST_CASE("an inactive recipe is saved as such, and one that has begun as that, whatever the count of updates says") {
  Fp8Options options;
  options.bf16_steps = 1;
  Fp8RecipeState recipe(options, 3);
  const auto loaded = [&](const Fp8Options& now) {
    MemoryState state;
    recipe.save(state);
    state.write_int("adam_step", 1);
    Fp8RecipeState other(now, 3);
    other.load(state);
    return other;
  };
  recipe.begin_step();
  recipe.end_step(true);
  CHECK(loaded(options).inactive()); // what is evaluated now is what was trained
  Fp8Options at_once = options;
  at_once.bf16_steps = 0;
  CHECK_FALSE(loaded(at_once).inactive());
  CHECK(loaded(at_once).calibration_due());

  recipe.begin_step();
  recipe.end_calibration();
  recipe.end_step(false); // the first step in FP8 is skipped: as many updates as before
  Fp8RecipeState resumed = loaded(options);
  CHECK_FALSE(resumed.inactive());
  CHECK_FALSE(resumed.calibration_due());
  resumed.begin_step();
  CHECK_FALSE(resumed.inactive());
}

TEST_CASE("calibration counts as one step of the history") {
  Fp8Options options = plain_options();
  options.amax_history = 3;
  Watched watched(options, 7.0f);
  CHECK(watched.step(1.0f) == 64.0f);
  CHECK(watched.step(1.0f) == 64.0f);
  CHECK(watched.step(1.0f) == 448.0f);
}

TEST_CASE("margin halves the scale, interval delays it") {
  Fp8Options options;
  options.margin = 2;
  options.interval = 3;
  Watched watched(options, 1.0f);
  CHECK(watched.recipe.scale(watched.id) == 112.0f);
  CHECK(watched.step(2.0f) == 112.0f);
  CHECK(watched.step(4.0f) == 112.0f);
  CHECK(watched.step(2.0f) == 28.0f); // the third: 448 / 4 / 2^2
  CHECK(watched.step(8.0f) == 28.0f);
}

TEST_CASE("zero, NaN and infinite amaxes keep the scale and leave no mark") {
  Fp8Options options = plain_options();
  options.amax_history = 2;
  Watched watched(options, 1.0f);
  for (const float amax : {0.0f, kNaN, kInfinity, 0.0f}) CHECK(watched.step(amax) == 448.0f);
  CHECK(watched.step(2.0f) == 224.0f); // the next good one counts at once

  CHECK(fp8_scale(0.0f, 448.0f, 0, 5.0f) == 5.0f);
  CHECK(fp8_scale(kNaN, 448.0f, 0, 5.0f) == 5.0f);
  CHECK(fp8_scale(kInfinity, 448.0f, 0, 5.0f) == 5.0f);
  CHECK(fp8_scale(1e-42f, 448.0f, 0, 5.0f) == 5.0f); // 448 / 1e-42 overflows
  CHECK(fp8_scale(0.5f, 448.0f, 1, 5.0f) == 448.0f);
}

TEST_CASE("the largest value itself never counts as saturated") {
  for (int i = 1; i < 5000; ++i) {
    const float amax = 1e-4f * static_cast<float>(i);
    for (const float format_max : {448.0f, 57344.0f}) {
      const float scale = fp8_scale(amax, format_max, 0, 1.0f);
      CHECK(amax * scale <= format_max);
      CHECK(amax * scale > format_max * 0.999999f);
    }
  }
}

TEST_CASE("a skipped step leaves scales and histories alone") {
  Fp8Options options = plain_options();
  options.amax_history = 4;
  Watched watched(options, 1.0f);
  watched.step(2.0f);
  const std::vector<float> before = history_of(watched);
  CHECK(watched.step(1000.0f, false) == 224.0f);
  CHECK(history_of(watched) == before);
  CHECK(watched.step(2.0f) == 224.0f);
}

TEST_CASE("cold start: at first, and after two skipped steps in a row") {
  Fp8RecipeState cold(Fp8Options{}, 1);
  CHECK(cold.calibration_due());

  Watched watched(plain_options(), 1.0f);
  CHECK_FALSE(watched.recipe.calibration_due());
  watched.step(1.0f, false);
  watched.step(1.0f, true);
  watched.step(1.0f, false);
  CHECK_FALSE(watched.recipe.calibration_due()); // not in a row
  watched.step(1.0f, false);
  CHECK(watched.recipe.calibration_due());

  watched.recipe.begin_step();
  watched.recipe.calibrate(watched.id, 16.0f); // what it knew is forgotten
  watched.recipe.end_calibration();
  CHECK_FALSE(watched.recipe.calibration_due());
  CHECK(watched.recipe.scale(watched.id) == 28.0f);
  CHECK(watched.step(8.0f) == 28.0f);
}

TEST_CASE("what a calibrating pass counted is not part of the step") {
  Fp8RecipeState recipe(plain_options(), 1);
  const int id = recipe.id(0, Fp8Site::qkv, Fp8Role::weight);
  recipe.begin_step();
  recipe.counts(id) = {.amax = 9.0f, .values = 100, .saturated = 50, .flushed = 20};
  recipe.calibrate(id, 9.0f);
  recipe.end_calibration();
  recipe.counts(id).amax = 3.0f;
  recipe.counts(id).values = 10;
  recipe.counts(id).flushed = 1;
  recipe.end_step(true);
  for (const Fp8TensorStats& tensor : recipe.stats()) {
    if (tensor.tensor.text() != "h.0/qkv/weight") continue;
    CHECK(tensor.amax == 3.0f);
    CHECK(tensor.saturated == 0.0);
    CHECK(tensor.flushed == doctest::Approx(0.1));
    CHECK(tensor.scale == doctest::Approx(448.0f / 9.0f)); // the one those counts were gathered with
  }
}

TEST_CASE("dlogits keep their static scale") {
  Fp8RecipeState recipe(Fp8Options{}, 1);
  const int id = recipe.id(0, Fp8Site::lm_head, Fp8Role::grad);
  recipe.begin_step();
  recipe.calibrate(id, 0.001f);
  recipe.end_calibration();
  recipe.counts(id).amax = 0.5f;
  recipe.end_step(true);
  CHECK(recipe.scale(id) == kDlogitsScale);
  CHECK(recipe.current_scale(id, 0.25f) == kDlogitsScale);
  CHECK(kDlogitsScale * 1.0f < fp8_max(Fp8Format::e5m2)); // |dlogit| <= 1 never saturates
}

TEST_CASE("statistics name what the recipe quantizes, and nothing else") {
  const auto names = [](Fp8FormatChoice format, bool lm_head) {
    Fp8Options options;
    options.format = format;
    options.lm_head = lm_head;
    std::vector<std::string> found;
    for (const Fp8TensorStats& tensor : Fp8RecipeState(options, 2).stats()) found.push_back(tensor.tensor.text());
    return found;
  };
  const auto hybrid = names(Fp8FormatChoice::hybrid, true);
  CHECK(hybrid.size() == 2 * 4 * 3 + 3);
  CHECK(hybrid.front() == "h.0/qkv/act");
  CHECK(hybrid.back() == "lm_head/grad");
  CHECK(names(Fp8FormatChoice::hybrid, false).back() == "h.1/fcproj/grad");
  CHECK(names(Fp8FormatChoice::e5m2, true).size() == 2 * 4 * 4 + 4);
}

TEST_CASE("a saved recipe goes on as if never stopped") {
  Fp8Options options;
  options.amax_history = 3;
  options.interval = 2;
  Watched original(options, 1.0f);
  original.step(2.0f);
  original.step(3.0f, false);
  MemoryState state;
  original.recipe.save(state);
  CHECK(state.floats.at("fp8/amax_history").shape == std::vector<int64_t>{fp8_tensor_count(2), 3});

  Watched resumed(options, 100.0f);
  resumed.recipe.load(state);
  CHECK_FALSE(resumed.recipe.calibration_due());
  CHECK(history_of(resumed) == history_of(original));
  for (const float amax : {1.5f, 0.5f, 7.0f, 0.1f}) CHECK(resumed.step(amax) == original.step(amax));

  // One skipped step was saved: a second one makes it cold.
  resumed.recipe.load(state);
  resumed.step(1.0f, false);
  CHECK(resumed.recipe.calibration_due());
}

TEST_CASE("the recipe is saved in the words of existing checkpoints, which would start cold otherwise") {
  Fp8Options options;
  options.amax_history = 3;
  for (const bool lm_head : {true, false}) {
    options.lm_head = lm_head;
    MemoryState state;
    Watched(options).recipe.save(state);
    CHECK(state.texts.at("fp8/recipe") == "hybrid, " + std::to_string(fp8_tensor_count(2)) +
                                              " tensors, history 3, LM head " + (lm_head ? "FP8" : "not quantised"));
  }
}

TEST_CASE("a state of another precision or recipe is a cold start") {
  Watched original(Fp8Options{}, 1.0f);
  MemoryState same, none;
  original.recipe.save(same);

  Watched watched(Fp8Options{}, 2.0f);
  watched.recipe.load(none); // saved by FP32 or BF16
  CHECK(watched.recipe.calibration_due());
  watched.recipe.load(same);
  CHECK_FALSE(watched.recipe.calibration_due());

  Fp8Options other;
  other.format = Fp8FormatChoice::e5m2;
  Watched converted(other, 2.0f);
  converted.recipe.load(same);
  CHECK(converted.recipe.calibration_due());
  other = {};
  other.amax_history = 8;
  Watched shorter(other, 2.0f);
  shorter.recipe.load(same);
  CHECK(shorter.recipe.calibration_due());
}

TEST_CASE("a block left in BF16 drops out of the recipe; the others keep their scales") {
  Fp8Options options;
  options.bf16_layers = {0};
  Fp8RecipeState recipe(options, 4);
  CHECK_FALSE(recipe.quantized_block(0));
  CHECK(recipe.quantized_block(2));
  recipe.leave_in_bf16(2);
  CHECK_FALSE(recipe.quantized_block(2));
  CHECK(recipe.quantized_block(1));
  CHECK(recipe.quantized_block(3));
  for (const Fp8Site site : {Fp8Site::qkv, Fp8Site::proj, Fp8Site::fc, Fp8Site::fcproj}) {
    for (const Fp8Role role : {Fp8Role::act, Fp8Role::weight, Fp8Role::grad}) {
      CHECK_FALSE(recipe.quantized(recipe.id(2, site, role)));
      CHECK_FALSE(recipe.delayed(recipe.id(2, site, role)));
      CHECK(recipe.quantized(recipe.id(3, site, role)));
    }
  }
  CHECK(recipe.quantized(recipe.id(0, Fp8Site::lm_head, Fp8Role::act)));
  for (const Fp8TensorStats& tensor : recipe.stats()) {
    CHECK(tensor.tensor.text().rfind("h.0/", 0) != 0);
    CHECK(tensor.tensor.text().rfind("h.2/", 0) != 0);
  }
}

TEST_CASE("which blocks were left in BF16 is saved; another choice of blocks may go on from it") {
  Watched original(Fp8Options{}, 1.0f); // watches block 1 of 2
  original.recipe.leave_in_bf16(0);
  original.step(2.0f);
  MemoryState state;
  original.recipe.save(state);
  CHECK(state.texts.at("fp8/left_in_bf16") == "0");

  Watched resumed(Fp8Options{}, 9.0f);
  resumed.recipe.load(state);
  CHECK_FALSE(resumed.recipe.quantized_block(0));
  CHECK(resumed.recipe.quantized_block(1));
  CHECK_FALSE(resumed.recipe.calibration_due());
  CHECK(resumed.recipe.scale(resumed.id) == original.recipe.scale(original.id));

  Fp8Options asked; // one more block in BF16: the scales of the rest are still right
  asked.bf16_layers = {1};
  Fp8RecipeState fewer(asked, 2);
  fewer.load(state);
  CHECK_FALSE(fewer.calibration_due());
  CHECK_FALSE(fewer.quantized_block(0));
  MemoryState of_fewer;
  fewer.save(of_fewer);
  CHECK(of_fewer.texts.at("fp8/left_in_bf16") == "0"); // what was asked for is not among them
  CHECK(of_fewer.texts.at("fp8/bf16_blocks") == "0 1");

  Fp8RecipeState more(Fp8Options{}, 2); // block 1 comes back and has no scale that is worth anything
  more.load(of_fewer);
  CHECK(more.quantized_block(1));
  CHECK(more.calibration_due());

  Fp8Options other; // another recipe: every block gets its chance again
  other.format = Fp8FormatChoice::e5m2;
  Fp8RecipeState converted(other, 2);
  converted.load(state);
  CHECK(converted.quantized_block(0));
  CHECK(converted.calibration_due());
}
