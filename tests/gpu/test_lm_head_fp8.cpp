// The LM head whose product tells softmax's maxima and sums, against double precision and against the plain product;
// then the loss that reads those instead of the logits.
#include "kernels/sm90/lm_head_fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/model/fp8_recipe.h"
#include "kernels/gemm_fp8.h"
#include "kernels/ignored_target.h"
#include "tests/gpu/fp8_matrix.h"

namespace gpt2 {
namespace {

constexpr uint8_t kNaN = 0x7F; // E4M3's

struct Shape {
  int64_t rows;
  int C, vocab, padded;
  int64_t elements() const { return rows * padded; }
  size_t at(int64_t row, int column) const { return static_cast<size_t>(row * padded + column); }
};

// One tile, fewer tiles than warpgroups and more; a panel's first column, some and none of its columns real; no
// padding; other widths; the model's.
const Shape kShapes[] = {{64, 768, 337, 384},   {192, 768, 193, 384},    {192, 768, 100, 384},     {640, 768, 768, 768},
                         {128, 1024, 250, 256}, {256, 1280, 1000, 1024}, {4096, 768, 50257, 50304}};

bool has_fused(const TestDevice& device, const Shape& s) {
  if (can_fuse_lm_head_fp8(*device.cuda.device, s.rows, s.C, s.padded)) return true;
  MESSAGE("skipped: fused products need compute capability 9.0");
  return false;
}

// The head's operands and results. The weight's padded rows are NaN, so that nobody may look at their logits; the real
// logits have a deviation of 2.
struct Head {
  explicit Head(const Shape& s)
      : s(s),
        parts_per_row(lm_head_parts_fp8(s.C, s.padded)),
        in(s.rows, s.C, Fp8Format::e4m3, 1, 1.0f),
        weight(s.padded, s.C, Fp8Format::e4m3, 2, 2.0f / std::sqrt(static_cast<float>(s.C))),
        logits(static_cast<size_t>(s.elements())),
        parts(static_cast<size_t>(s.rows * parts_per_row)) {
    std::vector<uint8_t> codes = weight.data->download();
    std::fill(codes.begin() + int64_t{s.vocab} * s.C, codes.end(), kNaN);
    weight.data->upload(codes);
  }

  void run(CudaStream& cuda) {
    lm_head_fp8(cuda, {.logits = logits,
                       .parts = parts,
                       .in = in.tensor(),
                       .weight = weight.tensor(),
                       .rows = s.rows,
                       .C = s.C,
                       .vocab = s.vocab,
                       .padded_vocab = s.padded});
  }

  void spoil_row(int64_t row) {
    std::vector<uint8_t> codes = in.data->download();
    codes[static_cast<size_t>(row * s.C)] = kNaN;
    in.data->upload(codes);
  }

  Shape s;
  int parts_per_row;
  Fp8Matrix in, weight;
  DeviceBuffer<bf16> logits;
  DeviceBuffer<SoftmaxPart> parts;
};

// What differs by more than one BF16 step and than fast accumulation may lose: 2^-9 of terms that together are 35
// large.
size_t far_apart(const std::vector<float>& actual, const std::vector<float>& expected, const Shape& s) {
  size_t far = 0;
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int column = 0; column < s.vocab; ++column) {
      const float is = actual[s.at(row, column)], should = expected[s.at(row, column)];
      far += !(std::fabs(is - should) <= 0x1p-7f * std::fabs(should) + 0.07f);
    }
  }
  return far;
}

// Parts of the logits given, as the CPU has them; the worst relative error of a sum, infinity for a wrong maximum.
double worst_part(const std::vector<SoftmaxPart>& parts, const std::vector<float>& logits, const Shape& s,
                  int parts_per_row) {
  const int width = s.padded / parts_per_row;
  double worst = 0;
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int part = 0; part < parts_per_row; ++part) {
      const int begin = part * width, end = std::min(begin + width, s.vocab);
      float maximum = -std::numeric_limits<float>::infinity();
      double sum = 0;
      for (int column = begin; column < end; ++column) maximum = std::max(maximum, logits[s.at(row, column)]);
      for (int column = begin; column < end; ++column)
        sum += std::exp(static_cast<double>(logits[s.at(row, column)]) - maximum);
      const SoftmaxPart& is = parts[static_cast<size_t>(row * parts_per_row + part)];
      if (is.maximum != maximum || !std::isfinite(is.sum)) return std::numeric_limits<double>::infinity();
      worst = std::max(worst, std::fabs(is.sum - sum) / std::max(sum, 1.0)); // 0 where all of it is padding
    }
  }
  return worst;
}

// The loss of a head's logits, and its gradient.
struct Loss {
  Loss(const Head& head, const std::vector<int32_t>& targets)
      : targets(targets),
        losses(static_cast<size_t>(head.s.rows)),
        dlogits(head.s.rows, head.s.padded, kDlogitsScale) {}

  void run(CudaStream& cuda, Head& head, const SoftmaxPart* parts) {
    cross_entropy_fp8(cuda, {.logits = head.logits,
                             .losses = losses,
                             .dlogits = dlogits.sink(Fp8Format::e5m2, Fp8Statistics::none),
                             .targets = targets,
                             .rows = head.s.rows,
                             .first_row = 4096,
                             .first_token = first_token,
                             .vocab = head.s.vocab,
                             .padded_vocab = head.s.padded,
                             .parts = parts,
                             .parts_per_row = head.parts_per_row});
  }

  DeviceBuffer<int32_t> targets;
  DeviceBuffer<int64_t> first_token{std::vector<int64_t>{65536}};
  DeviceBuffer<float> losses;
  CodeBuffers dlogits;
};

std::vector<int32_t> targets_of(const Shape& s) {
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < s.rows; ++row)
    targets.push_back(row % 5 == 4 ? kIgnoredTarget : static_cast<int32_t>(row * 7919 % s.vocab));
  targets[0] = s.vocab - 1;
  return targets;
}

} // namespace

TEST_CASE("logits, and the maximum and sum of exponentials of each of a row's parts, the same bits every time") {
  TestDevice device;
  for (const Shape& s : tested(kShapes)) {
    if (!has_fused(device, s)) return;
    CAPTURE(describe(s.rows, s.padded, Fp8Format::e4m3));
    Head head(s);
    head.run(device.cuda);
    const auto logits = head.logits.download();
    const auto parts = head.parts.download();
    const std::vector<float> values = to_float(logits);
    CHECK(worst_part(parts, values, s, head.parts_per_row) < 1e-5);

    DeviceBuffer<bf16> plain(head.logits.size());
    gemm_forward_fp8(device.cuda, {.out = plain,
                                   .in = head.in.tensor(),
                                   .weight = head.weight.tensor(),
                                   .bias = nullptr,
                                   .rows = s.rows,
                                   .C = s.C,
                                   .OC = s.padded});
    CHECK(far_apart(values, to_float(plain.download()), s) == 0);
    if (s.elements() <= int64_t{1} << 20) { // a product in double: 0.8 s
      std::vector<double> exact(values.size());
      multiply_add(exact, head.in.values, head.weight.values, s.rows, s.padded, s.C);
      CHECK(far_apart(values, {exact.begin(), exact.end()}, s) == 0);
    }
    for (int again = 0; again < 20; ++again) {
      head.logits.poison();
      head.parts.poison();
      head.run(device.cuda);
      CHECK(same_bits(head.parts.download(), parts));
      if (s.rows < 4096) CHECK(same_bits(head.logits.download(), logits));
    }
  }
}

TEST_CASE("cross-entropy from the parts is that from the logits") {
  TestDevice device;
  for (const Shape& s : tested(kShapes)) {
    if (!has_fused(device, s)) return;
    CAPTURE(describe(s.rows, s.padded, Fp8Format::e5m2));
    Head head(s);
    head.run(device.cuda);
    Loss from_logits(head, targets_of(s)), from_parts(head, targets_of(s));
    from_logits.run(device.cuda, head, nullptr);
    from_parts.run(device.cuda, head, head.parts);
    const std::vector<float> losses = from_parts.losses.download();
    CHECK(relative_error(losses, from_logits.losses.download()) < 1e-5);
    CHECK(losses[4] == 0);
    const std::vector<uint8_t> codes = from_parts.dlogits.data.download();
    check_codes(codes, from_logits.dlogits.data.download(), 1e-3);
    from_parts.dlogits.check_transpose();
    const auto ignored = codes.begin() + 4 * int64_t{s.padded};
    CHECK(std::all_of(ignored, ignored + s.padded, [](uint8_t code) { return code == 0; }));
  }
}

TEST_CASE("a NaN among the logits reaches its row's loss and gradient, and no other's") {
  TestDevice device;
  const Shape s{64, 768, 337, 384};
  if (!has_fused(device, s)) return;
  SUBCASE("all of a row") {
    Head head(s);
    head.spoil_row(1);
    head.run(device.cuda);
    Loss loss(head, targets_of(s));
    loss.run(device.cuda, head, head.parts);
    CHECK(std::isfinite(loss.losses.download()[0]));
    CHECK(std::isnan(loss.losses.download()[1]));
    CHECK(std::isfinite(loss.losses.download()[2]));
    CHECK(std::isnan(fp8_decode(loss.dlogits.data.download()[s.at(1, 50)], Fp8Format::e5m2)));
  }
  SUBCASE("one of a row, whose maximum passes over it") {
    Head head(s);
    std::vector<uint8_t> codes = head.weight.data->download();
    codes[size_t{100} * 768] = kNaN;
    head.weight.data->upload(codes);
    head.run(device.cuda);
    const std::vector<SoftmaxPart> parts = head.parts.download();
    CHECK(std::isfinite(parts[0].maximum));
    CHECK(std::isnan(parts[0].sum));
    CHECK(std::isfinite(parts[1].sum));
    Loss loss(head, targets_of(s));
    loss.run(device.cuda, head, head.parts);
    CHECK(std::isnan(loss.losses.download()[0]));
    CHECK(loss.losses.download()[4] == 0); // ignored
  }
}

} // namespace gpt2
