// When a block is found unfit for FP8, and what the table at the end of a run says.
#include "engine/run/fp8_monitor.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/contains.h"
#include "tests/fp8_names.h"

using namespace gpt2;

namespace {

Fp8TensorStats tensor(const std::string& name, double saturated, float amax = 1.0f, float scale = 448.0f) {
  return {testing::named(name), Fp8Format::e4m3, amax, scale, saturated, 0.0};
}

std::string findings_of(Fp8Guard& guard, const std::vector<Fp8TensorStats>& stats) { // "7: reason; "
  std::string text;
  for (const auto& [layer, reason] : guard.check(stats)) text += std::to_string(layer) + ": " + reason + "; ";
  return text;
}

} // namespace

TEST_CASE("the guard finds a block whose tensor saturates in three looks in a row, and finds it once") {
  Fp8Guard guard;
  const std::vector<Fp8TensorStats> bad{tensor("h.0/fc/act", 0.009), tensor("h.7/fc/grad", 0.032),
                                        tensor("h.7/qkv/act", 0.5)};
  const std::vector<Fp8TensorStats> good{tensor("h.0/fc/act", 0.0), tensor("h.7/fc/grad", 0.01)};
  CHECK(findings_of(guard, bad).empty());
  CHECK(findings_of(guard, bad).empty());
  CHECK(findings_of(guard, good).empty()); // not in a row
  CHECK(findings_of(guard, bad).empty());
  CHECK(findings_of(guard, bad).empty());
  CHECK(findings_of(guard, bad) == "7: h.7/fc/grad saturated 3.2% of its values, the third such check in a row; ");
  CHECK(findings_of(guard, bad).empty());
}

TEST_CASE("what the guard has counted can be written down and read back") {
  const std::vector<Fp8TensorStats> bad{tensor("h.7/fc/grad", 0.032), tensor("lm_head/act", 0.1)};
  Fp8Guard guard;
  CHECK(guard.text().empty());
  for (int look = 0; look < 6; ++look) {
    guard = Fp8Guard(guard.text());
    CHECK(findings_of(guard, bad).empty() == (look != 2)); // at the third look, once
  }
  CHECK(Fp8Guard("nonsense\x01 \n7 7 7").text() != guard.text()); // is no reason to fail
}

TEST_CASE("a block that is in FP8 again, under a new recipe, is found again; the LM head stays named once") {
  const std::vector<Fp8TensorStats> bad{tensor("h.7/fc/grad", 0.032), tensor("lm_head/act", 0.1)};
  Fp8Guard guard("found 7\nfound 9\nfound -1\n");
  guard.forget_blocks_in(bad);
  CHECK(guard.text() == "found -1\nfound 9\n");
  for (int look = 0; look < 2; ++look) CHECK(findings_of(guard, bad).empty());
  CHECK(findings_of(guard, bad) == "7: h.7/fc/grad saturated 3.2% of its values, the third such check in a row; ");
}

TEST_CASE("the guard counts tensors, not blocks: two that saturate in turn are no pattern") {
  Fp8Guard guard;
  for (int i = 0; i < 10; ++i) {
    CHECK(findings_of(guard, {tensor("h.0/fc/act", i % 2 ? 0.1 : 0.0), tensor("h.0/fc/grad", i % 2 ? 0.0 : 0.1)}) ==
          "");
  }
}

TEST_CASE("overflow and lost scales count as saturation does; the LM head and several blocks are told apart") {
  Fp8Guard guard;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  Fp8TensorStats dlogits = tensor("lm_head/grad", 0.5);
  dlogits.fixed_scale = true; // is not judged
  const std::vector<Fp8TensorStats> bad{tensor("h.3/fc/act", 0, infinity), tensor("h.10/fc/act", 0, nan),
                                        tensor("h.2/fc/act", 0, 1, 0),     tensor("h.4/fc/act", 0, 0),
                                        tensor("lm_head/act", 0.02),       dlogits};
  CHECK(findings_of(guard, bad).empty());
  CHECK(findings_of(guard, bad).empty());
  CHECK(findings_of(guard, bad) ==
        "-1: lm_head/act saturated 2.0% of its values, the third such check in a row; "
        "2: h.2/fc/act lost its scale, the third such check in a row; "
        "3: h.3/fc/act overflowed, the third such check in a row; "
        "10: h.10/fc/act overflowed, the third such check in a row; ");
}

TEST_CASE("the health table joins layers and names the tensors in trouble") {
  const std::vector<Fp8TensorStats> stats{
      {testing::named("h.0/fc/act"), Fp8Format::e4m3, 1.0f, 448.0f, 0.0, 0.01},
      {testing::named("h.1/fc/act"), Fp8Format::e4m3, 4.0f, 112.0f, 0.05, 0.02},
      {testing::named("h.1/fc/grad"), Fp8Format::e5m2, 1.0f, 448.0f, 0.0, 0.4},
      {testing::named("h.1/fcproj/act"), Fp8Format::e4m3, 1.0f, 448.0f, 0.0, 0.6}, // what GELU leaves near zero
      {testing::named("h.2/fcproj/act"), Fp8Format::e4m3, 1e4f, 0.02f, 0.0, 0.7},  // an outlier's scale: more than that
      {testing::named("lm_head/grad"), Fp8Format::e5m2, 0.0f, 16384.0f, 0.0, 0.0, true}};
  Fp8LagWatch lag({.fp8 = {}, .layers = 2, .warmup_steps = 20});
  for (const int64_t step : {10, 20}) lag.check(step, stats);
  const std::string table = fp8_health(stats, lag, false);
  CHECK(contains(table, "1.0e+00..4.0e+00"));
  CHECK(contains(table, "check h.1/fc/act: 5.00% saturated, 2.00% flushed"));
  CHECK_FALSE(contains(table, "check h.0"));
  CHECK(contains(table, "check h.1/fc/grad: 0.00% saturated, 40.00% flushed"));
  CHECK_FALSE(contains(table, "check h.1/fcproj/act"));
  CHECK(contains(table, "check h.2/fcproj/act: 0.00% saturated, 70.00% flushed"));
  CHECK(contains(table, " 70.0000%"));
  CHECK(contains(table, "   5.0000%  2.0000%     2\n")); // lags: two checks
  CHECK(contains(table, "\n  the scale of fc/act lags: 5% of h.1/fc/act saturated at step 20, in the warm-up"));
  const std::string dlogits = table.substr(table.find("lm_head/grad"));
  CHECK(contains(dlogits.substr(0, dlogits.find('\n')), " static "));
  CHECK_FALSE(contains(dlogits, "0.0e+00"));
  CHECK(fp8_health({}, lag, true).empty());
}

TEST_CASE("blocks of which nothing is quantized are named") {
  const std::vector<Fp8TensorStats> stats{tensor("h.1/fc/act", 0), tensor("h.10/qkv/grad", 0),
                                          tensor("lm_head/act", 0)};
  CHECK(unquantized_blocks(stats, 12) == std::vector<int>{0, 2, 3, 4, 5, 6, 7, 8, 9, 11});
  CHECK(unquantized_blocks({}, 2) == std::vector<int>{0, 1});
  CHECK(block_list({7}) == "block 7");
  CHECK(block_list({0, 3}) == "blocks 0, 3");
}

TEST_CASE("the summary: geometric means of scales, the worst shares with their tensors, blocks in BF16") {
  std::vector<Fp8TensorStats> stats{tensor("h.0/fc/act", 0.0, 1, 2), tensor("h.0/fc/weight", 0.25, 1, 8),
                                    tensor("h.2/fc/grad", 0.125, 1, 1024), tensor("lm_head/grad", 0.9, 1, 1),
                                    tensor("h.0/fcproj/act", 0.0, 1, 4)};
  stats[2].flushed = 0.5;
  stats[3].fixed_scale = true; // says nothing
  const Fp8Summary summary = summarize(stats, 3);
  CHECK(summary.forward_scale == doctest::Approx(4));
  CHECK(summary.backward_scale == doctest::Approx(1024));
  CHECK(summary.worst_saturated == 0.25);
  CHECK(summary.worst_saturated_tensor == "h.0/fc/weight");
  CHECK(summary.worst_flushed == 0.5);
  CHECK(summary.worst_flushed_tensor == "h.2/fc/grad");
  CHECK(summary.blocks_in_bf16 == 1); // block 1

  stats[4].flushed = 0.6; // GELU's output, of which this scale flushes what is below 0.00024
  CHECK(summarize(stats, 3).worst_flushed_tensor == "h.0/fcproj/act");
  stats[4].scale = 8; // 0.00012: GELU's tail, whatever the scale
  CHECK(summarize(stats, 3).worst_flushed_tensor == "h.2/fc/grad");
}
