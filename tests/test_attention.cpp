#include "kernels/attention.h"

#include <doctest/doctest.h>

#include "tests/kernel_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

struct Shape {
  int B, T, NH, HS;
  int C() const { return NH * HS; }
  int64_t tokens() const { return static_cast<int64_t>(B) * T; }
};
// Around the kernel's block of 64 queries, and odd heads.
constexpr Shape kShapes[] = {{1, 1, 1, 4}, {2, 7, 3, 16}, {1, 64, 2, 64}, {2, 65, 2, 24}, {1, 200, 2, 16}};

struct Reference {
  std::vector<double> out, stats;
};

Reference reference_forward(const std::vector<double>& qkv, const Shape& s) {
  const int C = s.C();
  Reference r{std::vector<double>(static_cast<size_t>(s.tokens() * C)),
              std::vector<double>(static_cast<size_t>(s.tokens() * s.NH))};
  const auto part = [&](int b, int t, int which, int h) {
    return qkv.data() + ((static_cast<int64_t>(b) * s.T + t) * 3 + which) * C + h * s.HS;
  };
  for (int b = 0; b < s.B; ++b) {
    for (int h = 0; h < s.NH; ++h) {
      for (int t = 0; t < s.T; ++t) {
        std::vector<double> weights;
        double sum = 0;
        for (int key = 0; key <= t; ++key) {
          double score = 0;
          for (int i = 0; i < s.HS; ++i) score += part(b, t, 0, h)[i] * part(b, key, 1, h)[i];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(s.HS))));
          sum += weights.back();
        }
        r.stats[static_cast<size_t>((b * s.NH + h) * s.T + t)] = std::log(sum);
        double* out = r.out.data() + (static_cast<int64_t>(b) * s.T + t) * C + h * s.HS;
        for (int key = 0; key <= t; ++key)
          for (int i = 0; i < s.HS; ++i) out[i] += weights[static_cast<size_t>(key)] / sum * part(b, key, 2, h)[i];
      }
    }
  }
  return r;
}

struct Result {
  std::vector<float> out, stats;
};

Result forward(const std::vector<float>& qkv, const Shape& s) {
  Cpu cpu;
  Result r{std::vector<float>(static_cast<size_t>(s.tokens() * s.C()), kNan),
           std::vector<float>(static_cast<size_t>(s.tokens() * s.NH), kNan)};
  attention_forward(cpu, {r.out.data(), r.stats.data(), qkv.data(), s.B, s.T, s.NH, s.HS});
  return r;
}

std::vector<float> backward(const std::vector<float>& qkv, const std::vector<float>& dout, const Result& r,
                            const Shape& s) {
  Cpu cpu;
  std::vector<float> dqkv(qkv.size(), kNan);
  attention_backward(cpu, {dqkv.data(), dout.data(), r.out.data(), qkv.data(), r.stats.data(), s.B, s.T, s.NH, s.HS});
  return dqkv;
}

} // namespace

TEST_CASE("forward agrees with double precision") {
  for (const Shape& s : kShapes) {
    const auto qkv = random_tensor(s.tokens() * 3 * s.C(), 1);
    const auto want = reference_forward(as_doubles(qkv), s);
    const auto got = forward(qkv, s);
    CHECK(max_error(got.out, want.out) < 2e-6);
    CHECK(max_error(got.stats, want.stats) < 1e-6);
  }
}

TEST_CASE("scores of several hundred neither overflow nor lose the probabilities") {
  const Shape s = {1, 70, 1, 16};
  auto qkv = random_tensor(s.tokens() * 3 * s.C(), 1, 8.0f); // scores up to about 300: e^300 fits a double, not a float
  const auto want = reference_forward(as_doubles(qkv), s);
  const auto got = forward(qkv, s);
  CHECK(max_error(got.stats, want.stats) < 1e-6);
  CHECK(max_error(got.out, want.out) < 1e-4); // an FP32 score of 300 is rounded by 3e-5
}

TEST_CASE("no query sees a later token") {
  const Shape s = {1, 130, 2, 16};
  auto qkv = random_tensor(s.tokens() * 3 * s.C(), 1);
  const auto before = forward(qkv, s);
  const size_t change_from = 100;
  for (size_t i = change_from * 3 * 32; i < qkv.size(); ++i) qkv[i] += 1;
  const auto after = forward(qkv, s);
  const auto first = [](const std::vector<float>& out) {
    return std::vector<float>(out.begin(), out.begin() + 100 * 32);
  };
  CHECK(same_bits(first(before.out), first(after.out)));
  CHECK(max_error(after.out, before.out) > 0.1);
}

TEST_CASE("backward agrees with central differences of the double forward, and overwrites dqkv") {
  for (const Shape& s : kShapes) {
    const auto qkv = random_tensor(s.tokens() * 3 * s.C(), 1), dout = random_tensor(s.tokens() * s.C(), 2);
    const auto got = backward(qkv, dout, forward(qkv, s), s);
    for (float value : got) REQUIRE(std::isfinite(value));
    const size_t stride =
        qkv.size() < 2500 ? 1 : 211; // every coordinate of the small ones, a prime stride through the others
    const auto want = central_differences(
        as_doubles(qkv), [&](const auto& x) { return dot(reference_forward(x, s).out, dout); }, stride);
    CHECK(max_error(every(got, stride), want) < 3e-6);
  }
}

TEST_CASE("the same bits for any number of threads") {
  const Shape s = {2, 130, 3, 16};
  const auto qkv = random_tensor(s.tokens() * 3 * s.C(), 1), dout = random_tensor(s.tokens() * s.C(), 2);
  CHECK(same_for_any_threads([&] { return forward(qkv, s).out; }));
  const auto result = forward(qkv, s);
  CHECK(same_for_any_threads([&] { return backward(qkv, dout, result, s); }));
}
