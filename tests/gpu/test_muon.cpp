// Muon on the GPU: its kernels against the CPU's, and whole models under it.
#include "kernels/muon.h"

#include "engine/model/config.h"
#include "tests/gpu/model_test.h"
#include "tests/singular_values.h"

namespace gpt2 {
namespace {

using testing::known_matrix;
using testing::KnownMatrix;

// BF16 matrices in five iterations; an emulation of that is 0.011 to 0.017 away from FP32.
constexpr double kBf16Tolerance = 0.03;

struct Shape {
  int64_t batch, rows, cols;
  int64_t elements() const { return batch * rows * cols; }
};

struct Stacks { // on the device
  explicit Stacks(const Shape& s)
      : in(static_cast<size_t>(s.elements())),
        out(in.size()),
        gram(static_cast<size_t>(s.batch * std::min(s.rows, s.cols) * std::min(s.rows, s.cols))),
        poly(gram.size()) {}
  Orthogonalize<bf16> op(const Shape& s) { return {out, in, gram, poly, s.batch, s.rows, s.cols}; }
  DeviceBuffer<bf16> in, out, gram, poly;
};

std::vector<float> on_cpu(TestDevice& device, std::vector<float> in, const Shape& s) {
  const auto side = static_cast<size_t>(std::min(s.rows, s.cols));
  std::vector<float> out(in.size()), gram(side * side), poly(gram.size());
  orthogonalize(device.cpu,
                Orthogonalize<float>{out.data(), in.data(), gram.data(), poly.data(), s.batch, s.rows, s.cols});
  return out;
}

StepScalars applied_step(float grad_scale) {
  StepScalars scalars{};
  scalars.grad_scale = grad_scale;
  return scalars;
}

// Two segments of a flat buffer that are no neighbors, stacked in the other order.
struct Segments {
  static constexpr int64_t kCount = 64 * 128, kFlat = 4 * kCount;
  std::vector<MuonSegment> all = {{.flat = 2 * kCount, .compact = kCount, .stacked = 0, .count = kCount},
                                  {.flat = 0, .compact = 0, .stacked = kCount, .count = kCount}};
  DeviceBuffer<MuonSegment> gpu{all};
  MuonSegments here() { return {all.data(), 2, kCount}; }
  MuonSegments there() { return {gpu, 2, kCount}; }
};

ModelOptions muon_options(Precision precision, const GPT2Config& config = small_config()) {
  ModelOptions options = small_options(precision, config);
  options.optimizer = Optimizer::muon;
  return options;
}

UpdateSettings muon_settings(float lr = 5e-3f) {
  UpdateSettings settings = update_settings(lr);
  settings.muon.lr = lr;
  return settings;
}

std::vector<float> memorize(Model& model, int steps) {
  const TokenBatch batch(4, model.config().seq_len, model.config().vocab, 77);
  std::vector<float> losses;
  for (int i = 0; i < steps; ++i) losses.push_back(train_step(model, {&batch}, muon_settings()).loss);
  return losses;
}

double loss_of(Model& model) {
  const TokenBatch batch(4, model.config().seq_len, model.config().vocab, 78);
  return evaluate(model, batch.view).sum;
}

} // namespace

TEST_CASE("orthogonalized matrices are the CPU's up to BF16, and the same bits every time") {
  TestDevice device;
  for (const Shape& s : tested<Shape>({{1, 64, 64}, {3, 64, 256}, {3, 256, 64}, {5, 72, 72}, {4, 768, 768}})) {
    CAPTURE(s.rows);
    CAPTURE(s.cols);
    const std::vector<float> in = random_values(static_cast<size_t>(s.elements()), 3, 5.0f);
    Stacks stacks(s);
    stacks.in.upload(to_bf16(in));
    orthogonalize(device.cuda, stacks.op(s));
    const std::vector<bf16> first = stacks.out.download();
    CHECK(relative_error(to_float(first), on_cpu(device, in, s)) < kBf16Tolerance);
    stacks.in.upload(to_bf16(in));
    orthogonalize(device.cuda, stacks.op(s));
    CHECK(same_bits(stacks.out.download(), first));
  }
}

TEST_CASE("singular values of at least 3e-3 of the norm go into the band, in BF16 too") {
  TestDevice device;
  for (const Shape& s : {Shape{1, 64, 256}, Shape{1, 256, 64}, Shape{1, 128, 128}}) {
    CAPTURE(s.rows);
    const KnownMatrix known = known_matrix(s.rows, s.cols, 3, 7);
    Stacks stacks(s);
    stacks.in.upload(to_bf16(known.matrix()));
    orthogonalize(device.cuda, stacks.op(s));
    const std::vector<float> out = to_float(stacks.out.download());
    for (int64_t i = 0; i < known.side(); ++i) {
      if (known.values[static_cast<size_t>(i)] < 3e-3) continue;
      CHECK(known.value_in(out.data(), i) >= 0.67);
      CHECK(known.value_in(out.data(), i) <= 1.21);
    }
  }
}

TEST_CASE("a matrix of zeros among others stays zero and harms none") {
  TestDevice device;
  const Shape s{3, 64, 64};
  std::vector<float> in = random_values(static_cast<size_t>(s.elements()), 3);
  std::fill_n(in.begin() + 64 * 64, 64 * 64, 0.0f);
  Stacks stacks(s);
  stacks.in.upload(to_bf16(in));
  orthogonalize(device.cuda, stacks.op(s));
  const std::vector<float> out = to_float(stacks.out.download());
  CHECK(relative_error(out, on_cpu(device, in, s)) < kBf16Tolerance);
  CHECK(std::all_of(out.begin() + 64 * 64, out.begin() + 2 * 64 * 64, [](float value) { return value == 0; }));
}

TEST_CASE("momentum: the CPU's in FP32, u in BF16, stacked or flat; nothing in a skipped step") {
  TestDevice device;
  Segments segments;
  constexpr size_t kFlat = Segments::kFlat, kCompact = 2 * Segments::kCount;
  const std::vector<float> grad = random_values(kFlat, 1, 100.0f);
  for (const bool flat : {false, true}) {
    std::vector<float> momentum = random_values(kCompact, 2), u(flat ? kFlat : kCompact);
    DeviceBuffer<float> gpu_grad(grad), gpu_momentum(momentum);
    DeviceBuffer<bf16> gpu_u(to_bf16(u));
    GuardState guard{};
    guard.adam_step = 100;
    for (const Verdict verdict : {Verdict::applied, Verdict::skipped_nonfinite}) {
      StepScalars scalars = applied_step(0.01f);
      scalars.verdict = verdict;
      DeviceBuffer<StepScalars> gpu_scalars(std::vector<StepScalars>{scalars});
      DeviceBuffer<GuardState> gpu_guard(std::vector<GuardState>{guard});
      muon_momentum(device.cpu, MuonMomentum<float>{u.data(), flat, momentum.data(), grad.data(), segments.here(),
                                                    &scalars, &guard, 0.95f, 300});
      muon_momentum(device.cuda, MuonMomentum<bf16>{gpu_u, flat, gpu_momentum, gpu_grad, segments.there(), gpu_scalars,
                                                    gpu_guard, 0.95f, 300});
      CHECK(relative_error(gpu_momentum.download(), momentum) < 1e-6);
      CHECK(relative_error(download_floats(gpu_u), u) < 4e-3);
    }
  }
}

TEST_CASE("the update: the CPU's weights, their BF16 copy, the norm; nothing in a skipped step") {
  TestDevice device;
  Segments segments;
  constexpr size_t kFlat = Segments::kFlat, kCompact = 2 * Segments::kCount;
  const std::vector<float> x = random_values(kCompact, 1);
  for (const bool cautious : {false, true}) {
    std::vector<float> master = random_values(kCompact, 2);
    DeviceBuffer<float> gpu_master(master);
    DeviceBuffer<bf16> gpu_x(to_bf16(x)), gpu_weights{to_bf16(std::vector<float>(kFlat))};
    for (const Verdict verdict : {Verdict::applied, Verdict::skipped_nonfinite}) {
      StepScalars scalars = applied_step(1);
      scalars.verdict = verdict;
      DeviceBuffer<StepScalars> gpu_scalars(std::vector<StepScalars>{scalars});
      muon_update(device.cpu, MuonUpdate<float>{master.data(), nullptr, x.data(), segments.here(), &scalars, 0.01f,
                                                5.5f, 0.1f, cautious, &scalars.updates.matrices});
      muon_update(device.cuda, MuonUpdate<bf16>{gpu_master, gpu_weights, gpu_x, segments.there(), gpu_scalars, 0.01f,
                                                5.5f, 0.1f, cautious, &gpu_scalars.get()->updates.matrices});
      const std::vector<float> now = gpu_master.download();
      CHECK(relative_error(now, master) < 1e-6);
      const std::vector<bf16> weights = gpu_weights.download(), rounded = to_bf16(now);
      for (const MuonSegment& segment : segments.all)
        CHECK(std::memcmp(&weights[static_cast<size_t>(segment.flat)], &rounded[static_cast<size_t>(segment.compact)],
                          static_cast<size_t>(segment.count) * sizeof(bf16)) == 0);
      CHECK(gpu_scalars.download()[0].updates.matrices ==
            doctest::Approx(scalars.updates.matrices).epsilon(1e-5)); // 0 where it was skipped
    }
  }
}

TEST_CASE("a model under Muon moves its weights as on the CPU") {
  const auto cpu = make_cpu_model(muon_options(Precision::fp32));
  const auto gpu = make_cuda_model(muon_options(Precision::bf16), deterministic());
  randomize(*cpu);
  copy_state(*cpu, *gpu);
  const std::vector<float> expected = memorize(*cpu, 1), actual = memorize(*gpu, 1);
  CHECK(std::fabs(actual[0] - expected[0]) < 2e-3 * expected[0]);
  const MemoryState a = state_of(*gpu), e = state_of(*cpu);
  for (const auto& [name, tensor] : e.floats) {
    if (name.rfind("params/", 0) == 0) continue;
    CAPTURE(name);
    CHECK(a.floats.contains(name)); // the same moments
  }
  // BF16's gradients point where FP32's do (cosine 0.999); orthogonalization lifts what differs.
  const auto fresh = make_cpu_model(muon_options(Precision::fp32));
  randomize(*fresh);
  const MemoryState before = state_of(*fresh);
  for (const ParameterTensor& tensor : cpu->parameters().tensors()) {
    if (!tensor.muon) continue;
    CAPTURE(tensor.name);
    const auto change = [&](const MemoryState& after) {
      std::vector<float> values = after.floats.at("params/" + tensor.name).values;
      const std::vector<float>& old = before.floats.at("params/" + tensor.name).values;
      for (size_t i = 0; i < values.size(); ++i) values[i] -= old[i];
      return values;
    };
    const Agreement found = agreement(change(a), change(e));
    CHECK(found.cosine > 0.8);
    CHECK(std::fabs(found.norm_ratio - 1) < 0.03);
  }
}

TEST_CASE("BF16 and FP8 learn under Muon, near the CPU") {
  const auto cpu = make_cpu_model(muon_options(Precision::fp32));
  const std::vector<float> expected = memorize(*cpu, 20);
  CHECK(expected.back() < expected.front() - 1);
  for (const Precision precision : {Precision::bf16, Precision::fp8}) {
    const auto gpu = make_cuda_model(muon_options(precision), deterministic());
    const std::vector<float> losses = memorize(*gpu, 20);
    for (size_t i = 0; i < losses.size(); ++i) {
      CAPTURE(i);
      CHECK(std::fabs(losses[i] - expected[i]) < 0.1); // the emulation in FP8 is at most 0.01 away
    }
  }
}

TEST_CASE("two runs have the same bits, and a saved state continues with them, FP8 weights included") {
  for (const Precision precision : {Precision::bf16, Precision::fp8}) {
    const auto one = make_cuda_model(muon_options(precision), deterministic());
    const auto other = make_cuda_model(muon_options(precision), deterministic());
    memorize(*one, 3);
    memorize(*other, 3);
    MemoryState middle = state_of(*one);
    CHECK(same_state(middle, state_of(*other)));
    const auto resumed = make_cuda_model(muon_options(precision), deterministic());
    resumed->load_state(middle);
    CHECK(loss_of(*resumed) == loss_of(*one)); // what was quantized after the update is what the master weights give
    memorize(*one, 3);
    memorize(*resumed, 3);
    CHECK(same_state(state_of(*resumed), state_of(*one)));
  }
}

TEST_CASE("a skipped step changes no weight, no momentum and no count under Muon") {
  for (const Precision precision : {Precision::bf16, Precision::fp8}) {
    const auto model = make_cuda_model(muon_options(precision), deterministic());
    memorize(*model, 2);
    const MemoryState before = state_of(*model);
    const TokenBatch nothing(4, model->config().seq_len, model->config().vocab, 5, 1); // every target is ignored
    CHECK(train_step(*model, {&nothing}, muon_settings()).verdict == Verdict::skipped_nonfinite);
    const MemoryState after = state_of(*model);
    for (const auto& [name, tensor] : before.floats) {
      CAPTURE(name);
      CHECK(same_bits(after.floats.at(name).values, tensor.values));
    }
    CHECK(after.ints.at("adam_step") == before.ints.at("adam_step"));
    CHECK(std::isfinite(memorize(*model, 1)[0]));
  }
}

TEST_CASE("Muon takes no more memory than AdamW") {
  for (const char* name : {"gpt2", "gpt2-xl"}) {
    for (const Precision precision : {Precision::bf16, Precision::fp8}) {
      for (const Recompute recompute : {Recompute::none, Recompute::block}) {
        ModelOptions options = small_options(precision, config_by_name(name));
        options.batch_size = 1;
        CudaModelOptions cuda;
        cuda.recompute = recompute;
        const int64_t adamw = cuda_model_bytes(options, cuda);
        options.optimizer = Optimizer::muon;
        CHECK(cuda_model_bytes(options, cuda) <= adamw);
      }
    }
  }
}

} // namespace gpt2
