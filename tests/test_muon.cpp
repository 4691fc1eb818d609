#include "kernels/muon.h"

#include <doctest/doctest.h>

#include "tests/kernel_testing.h"
#include "tests/singular_values.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

std::vector<float> orthogonalized(std::vector<float> in, int64_t batch, int64_t rows, int64_t cols) {
  Cpu cpu;
  const auto side = static_cast<size_t>(std::min(rows, cols));
  std::vector<float> out(in.size()), gram(side * side), poly(side * side);
  orthogonalize(cpu, Orthogonalize<float>{.out = out.data(),
                                          .in = in.data(),
                                          .gram = gram.data(),
                                          .poly = poly.data(),
                                          .batch = batch,
                                          .rows = rows,
                                          .cols = cols});
  return out;
}

constexpr double kLow = 0.67, kHigh = 1.21; // after five iterations

} // namespace

TEST_CASE("singular values of at least 3e-3 of the norm go into the band, whatever the shape") {
  for (const auto& [rows, cols] : {std::pair{48, 160}, std::pair{160, 48}, std::pair{64, 64}}) {
    CAPTURE(rows);
    const KnownMatrix known = known_matrix(rows, cols, 4, 7);
    std::vector<float> in = known.matrix();
    for (float& value : in) value *= 37; // the norm of the input does not matter
    const std::vector<float> out = orthogonalized(in, 1, rows, cols);
    int inside = 0, small = 0;
    for (int64_t i = 0; i < known.side(); ++i) {
      const double before = known.values[static_cast<size_t>(i)], after = known.value_in(out.data(), i);
      if (before < 3e-3) {
        CHECK(after > before); // lifted, not all the way
        ++small;
        continue;
      }
      CHECK(after >= kLow);
      CHECK(after <= kHigh);
      ++inside;
    }
    CHECK(inside > 10);
    CHECK(small > 10);
  }
}

TEST_CASE("a batch is its matrices one by one, a transposed one the transpose, and a matrix of zeros stays so") {
  const int64_t rows = 24, cols = 56, elements = rows * cols;
  std::vector<float> wide = random_tensor(3 * elements, 1), tall(wide.size());
  std::fill_n(wide.begin() + elements, elements, 0.0f);
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t i = 0; i < elements; ++i)
      tall[static_cast<size_t>(b * elements + i % cols * rows + i / cols)] =
          wide[static_cast<size_t>(b * elements + i)];
  }
  const std::vector<float> out = orthogonalized(wide, 3, rows, cols);
  const std::vector<float> out_tall = orthogonalized(tall, 3, cols, rows);
  for (int64_t b = 0; b < 3; ++b) {
    const auto at = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + b * elements, all.begin() + (b + 1) * elements);
    };
    std::vector<float> back(static_cast<size_t>(elements));
    for (int64_t i = 0; i < elements; ++i)
      back[static_cast<size_t>(i)] = at(out_tall)[static_cast<size_t>(i % cols * rows + i / cols)];
    CHECK(same_bits(at(out), orthogonalized(at(wide), 1, rows, cols)));
    CHECK(max_error(back, at(out)) < 1e-4);
    if (b == 1) CHECK(at(out) == std::vector<float>(static_cast<size_t>(elements), 0.0f));
  }
}

TEST_CASE("the momentum grows over the applied updates of its warm-up") {
  CHECK(muon_momentum_at(0.95f, 0, 1) == 0.95f);
  CHECK(muon_momentum_at(0.95f, 300, 1) == 0.85f);
  CHECK(muon_momentum_at(0.95f, 300, 151) == doctest::Approx(0.90f));
  CHECK(muon_momentum_at(0.95f, 300, 301) == 0.95f);
  CHECK(muon_momentum_at(0.8f, 300, 1) == 0.8f);
}

TEST_CASE("decay is cautious on request: only where update and weight agree in sign") {
  Cpu cpu;
  const std::vector<float> update = {1, 1, -1, -1, 0};
  const MuonSegment segment{.flat = 0, .compact = 0, .stacked = 0, .count = 5};
  const StepScalars scalars{};
  for (const bool cautious : {false, true}) {
    std::vector<float> weights = {2, -2, 2, -2, 2};
    double square = 0;
    muon_update(cpu, MuonUpdate<float>{.master = weights.data(),
                                       .weights = nullptr,
                                       .update = update.data(),
                                       .segments = {&segment, 1, 5},
                                       .scalars = &scalars,
                                       .lr = 0.5f,
                                       .scale = 0.5f,
                                       .weight_decay = 0.25f,
                                       .cautious_decay = cautious,
                                       .update_square = &square});
    CHECK(square == doctest::Approx(4 * 0.25 * 0.25));
    CHECK(weights == (cautious ? std::vector<float>{1.5f, -2.25f, 2.25f, -1.5f, 2.0f}
                               : std::vector<float>{1.5f, -2.0f, 2.0f, -1.5f, 1.75f}));
  }
}
