#include "kernels/layernorm.h"

#include <doctest/doctest.h>

#include "kernels/layernorm_backward.h"
#include "tests/kernel_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

struct Shape {
  int rows, C;
};
constexpr Shape kShapes[] = {{1, 2}, {7, 48}, {5, 67}, {33, 768}};

struct Reference {
  std::vector<double> out, mean, rstd;
};

Reference reference_forward(const std::vector<double>& x, const std::vector<double>& weight,
                            const std::vector<double>& bias, const Shape& s) {
  Reference r{std::vector<double>(x.size()), {}, {}};
  for (int i = 0; i < s.rows; ++i) {
    const double* row = x.data() + i * s.C;
    double mean = 0, variance = 0;
    for (int c = 0; c < s.C; ++c) mean += row[c] / s.C;
    for (int c = 0; c < s.C; ++c) variance += (row[c] - mean) * (row[c] - mean) / s.C;
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    for (int c = 0; c < s.C; ++c)
      r.out[static_cast<size_t>(i * s.C + c)] =
          (row[c] - mean) * rstd * weight[static_cast<size_t>(c)] + bias[static_cast<size_t>(c)];
    r.mean.push_back(mean);
    r.rstd.push_back(rstd);
  }
  return r;
}

struct Tensors {
  Shape shape;
  std::vector<float> x, weight, bias, dout;
  Reference reference;
  std::vector<float> mean, rstd; // rounded from the reference, as backward gets them

  explicit Tensors(const Shape& s, float offset = 0.3f)
      : shape(s),
        x(random_tensor(s.rows * s.C, 1)),
        weight(random_tensor(s.C, 2)),
        bias(random_tensor(s.C, 3)),
        dout(random_tensor(s.rows * s.C, 4)) {
    for (float& value : x) value += offset;
    reference = reference_forward(as_doubles(x), as_doubles(weight), as_doubles(bias), s);
    mean.assign(reference.mean.begin(), reference.mean.end());
    rstd.assign(reference.rstd.begin(), reference.rstd.end());
  }
  LayerNormBackward<float> backward(float* dx, float* dweight, float* dbias, float* dbranch_bias,
                                    bool accumulate) const {
    return {dx,          dweight,     dbias,      dbranch_bias, dout.data(), x.data(), weight.data(),
            mean.data(), rstd.data(), shape.rows, shape.C,      accumulate};
  }
};

std::vector<double> column_sums(const std::vector<float>& start, const std::vector<float>& x) {
  std::vector<double> sums = as_doubles(start);
  for (size_t i = 0; i < x.size(); ++i) sums[i % sums.size()] += static_cast<double>(x[i]);
  return sums;
}

} // namespace

TEST_CASE("forward without a branch: plain LayerNorm, residual_out untouched") {
  Cpu cpu;
  for (const Shape& s : kShapes) {
    const Tensors t(s);
    std::vector<float> out(t.x.size(), kNan), mean(t.mean.size(), kNan), rstd(t.rstd.size(), kNan);
    layernorm_forward(cpu, {out.data(), nullptr, mean.data(), rstd.data(), t.x.data(), nullptr, t.weight.data(),
                            t.bias.data(), s.rows, s.C});
    CHECK(max_error(out, t.reference.out) < 1e-6);
    CHECK(max_error(mean, t.reference.mean) < 1e-6);
    CHECK(max_error(rstd, t.reference.rstd) < 1e-6);
  }
}

TEST_CASE("forward with a branch: normalizes the sum, which it also writes, in place if asked") {
  Cpu cpu;
  for (const Shape& s : kShapes) {
    const Tensors t(s);
    const auto branch = random_tensor(s.rows * s.C, 9);
    std::vector<float> residual_in(t.x.size()), sum(t.x.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      residual_in[i] = t.x[i] - branch[i];
      sum[i] = residual_in[i] + branch[i];
    }
    const auto want = reference_forward(as_doubles(sum), as_doubles(t.weight), as_doubles(t.bias), s);
    std::vector<float> out(sum.size(), kNan), residual_out(sum.size(), kNan), mean(t.mean.size()), rstd(t.rstd.size());
    LayerNormForward<float> op{out.data(),    residual_out.data(), mean.data(),   rstd.data(), residual_in.data(),
                               branch.data(), t.weight.data(),     t.bias.data(), s.rows,      s.C};
    layernorm_forward(cpu, op);
    CHECK(same_bits(residual_out, sum));
    CHECK(max_error(out, want.out) < 1e-6);

    std::vector<float> out_again(out.size());
    op.out = out_again.data();
    op.residual_out = residual_in.data();
    layernorm_forward(cpu, op);
    CHECK(same_bits(residual_in, sum));
    CHECK(same_bits(out_again, out));
  }
}

TEST_CASE("forward survives a mean 1000 times the deviation, where E[x^2] - mean^2 would not") {
  Cpu cpu;
  const Tensors t({3, 768}, 1000.0f);
  std::vector<float> out(t.x.size()), mean(3), rstd(3);
  layernorm_forward(cpu, {out.data(), nullptr, mean.data(), rstd.data(), t.x.data(), nullptr, t.weight.data(),
                          t.bias.data(), 3, 768});
  CHECK(max_error(out, t.reference.out) < 1e-4);
  CHECK(max_error(rstd, t.reference.rstd) < 1e-5);
}

TEST_CASE("backward agrees with central differences of the double forward") {
  Cpu cpu;
  for (const Shape& s : {Shape{1, 2}, Shape{7, 48}, Shape{5, 67}}) {
    const Tensors t(s);
    const auto objective = [&](const auto& x, const auto& weight, const auto& bias) {
      return dot(reference_forward(x, weight, bias, s).out, t.dout);
    };
    const auto x = as_doubles(t.x), weight = as_doubles(t.weight), bias = as_doubles(t.bias);
    const auto want_dx = central_differences(x, [&](const auto& at) { return objective(at, weight, bias); });
    const auto want_dweight = central_differences(weight, [&](const auto& at) { return objective(x, at, bias); });
    const auto want_dbias = central_differences(bias, [&](const auto& at) { return objective(x, weight, at); });

    std::vector<float> dx(t.x.size(), kNan), dweight(t.weight.size()), dbias(t.bias.size());
    layernorm_backward(cpu, t.backward(dx.data(), dweight.data(), dbias.data(), nullptr, false));
    if (s.C > 2) CHECK(max_error(dx, want_dx) < 2e-6); // for C = 2 the output hardly depends on x: all is rounding
    CHECK(max_error(dweight, want_dweight) < 1e-6);
    CHECK(max_error(dbias, want_dbias) < 1e-6);
  }
}

TEST_CASE("backward adds to what it accumulates, and sums the resulting dresidual for the branch's bias") {
  Cpu cpu;
  for (const Shape& s : kShapes) {
    const Tensors t(s);
    std::vector<float> dx(t.x.size()), dweight(t.weight.size()), dbias(t.bias.size()), dbranch_bias(t.bias.size());
    layernorm_backward(cpu, t.backward(dx.data(), dweight.data(), dbias.data(), dbranch_bias.data(), false));
    CHECK(max_error(dbranch_bias, column_sums(std::vector<float>(dbias.size()), dx)) < 1e-7);

    const auto start_dx = random_tensor(s.rows * s.C, 5), start = random_tensor(s.C, 6, 3.0f);
    auto dx2 = start_dx, dweight2 = start, dbias2 = start, dbranch_bias2 = start;
    layernorm_backward(cpu, t.backward(dx2.data(), dweight2.data(), dbias2.data(), dbranch_bias2.data(), true));
    std::vector<double> want_dx(dx.size()), want_dweight(dweight.size()), want_dbias(dbias.size());
    for (size_t i = 0; i < dx.size(); ++i) want_dx[i] = static_cast<double>(start_dx[i]) + static_cast<double>(dx[i]);
    for (size_t i = 0; i < start.size(); ++i) {
      want_dweight[i] = static_cast<double>(start[i]) + static_cast<double>(dweight[i]);
      want_dbias[i] = static_cast<double>(start[i]) + static_cast<double>(dbias[i]);
    }
    CHECK(max_error(dx2, want_dx) < 3e-7);
    CHECK(max_error(dweight2, want_dweight) < 3e-7);
    CHECK(max_error(dbias2, want_dbias) < 3e-7);
    CHECK(max_error(dbranch_bias2, column_sums(start, dx2)) < 1e-7);
  }
}

TEST_CASE("the same bits for any number of threads") {
  Cpu cpu;
  const Tensors t({50, 200});
  CHECK(same_for_any_threads([&] {
    std::vector<float> dx(t.x.size()), dweight(200), dbias(200), dbranch_bias(200);
    layernorm_backward(cpu, t.backward(dx.data(), dweight.data(), dbias.data(), dbranch_bias.data(), false));
    for (const auto* part : {&dweight, &dbias, &dbranch_bias}) dx.insert(dx.end(), part->begin(), part->end());
    return dx;
  }));
}
