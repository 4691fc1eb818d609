// Attention on the GPU, our own kernels and cuDNN, against the CPU reference and each other.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/sm90/attention.h"
#include "tests/expect_error.h"
#include "tests/gpu/gpu_test.h"

namespace gpt2 {
namespace {

// Relative errors in norm. Probabilities and score gradients are rounded to BF16 before their products, and so are the
// results: each about 2e-3. Statistics are FP32 throughout.
constexpr double kOutTolerance = 5e-3;
constexpr double kGradientTolerance = 1e-2;
constexpr double kStatsTolerance = 1e-4;
constexpr double kSumTolerance = 2e-3;

struct Shape {
  int B, T, NH, HS;
  size_t out_size() const { return static_cast<size_t>(B) * T * NH * HS; }
  size_t stats_size() const { return static_cast<size_t>(B) * NH * T; }
  size_t elements() const { return std::max(out_size(), stats_size() * T); } // or scores, never in memory
};

std::string name_of(const Shape& s) {
  return "B=" + std::to_string(s.B) + " T=" + std::to_string(s.T) + " NH=" + std::to_string(s.NH) +
         " HS=" + std::to_string(s.HS);
}

CudaOptions options_of(AttentionKind kind, bool deterministic = false) {
  CudaOptions options;
  options.attention = kind;
  options.deterministic = deterministic;
  return options;
}

// The part `which` (q, k or v) of packed (B, T, 3, C) values.
std::vector<float> part_of(const std::vector<float>& packed, const Shape& s, size_t which) {
  const size_t C = static_cast<size_t>(s.NH) * s.HS;
  std::vector<float> part;
  for (size_t row = 0; row < packed.size() / (3 * C); ++row) {
    const auto start = packed.begin() + static_cast<ptrdiff_t>((3 * row + which) * C);
    part.insert(part.end(), start, start + static_cast<ptrdiff_t>(C));
  }
  return part;
}

struct Results {
  std::vector<float> out, stats, dqkv = {};
  std::vector<float> dbias = {}; // where the kernel takes it along
};

// Over a batch's positions, of the (B, T, 3, C) gradient.
std::vector<float> column_sums(const std::vector<float>& dqkv, const Shape& s) {
  const size_t width = 3 * static_cast<size_t>(s.NH) * s.HS;
  std::vector<double> sums(width);
  for (size_t i = 0; i < dqkv.size(); ++i) sums[i % width] += dqkv[i];
  return {sums.begin(), sums.end()};
}

// Forward, then backward from the reference's out (rounded) and stats, so that errors do not add up.
struct Problem {
  // Documents begin where `tokens` (B, T) are 0; without tokens there is no mask.
  explicit Problem(const Shape& s, const std::vector<int32_t>& tokens = {})
      : shape(s),
        qkv(random_values(3 * s.out_size(), 1)),
        dout(random_values(s.out_size(), 2)),
        begin(tokens.size()),
        end(tokens.size()) {
    Cpu cpu;
    DocumentBounds documents;
    if (!tokens.empty()) {
      find_documents(cpu, {begin.data(), end.data(), nullptr, tokens.data(), s.B, s.T, 0});
      documents = {begin.data(), end.data()};
    }
    expected = {std::vector<float>(s.out_size()), std::vector<float>(s.stats_size()),
                std::vector<float>(3 * s.out_size())};
    attention_forward(cpu, AttentionForward<float>{expected.out.data(), expected.stats.data(), qkv.data(), s.B, s.T,
                                                   s.NH, s.HS, documents});
    rounded_out = to_float(to_bf16(expected.out));
    attention_backward(cpu, AttentionBackward<float>{expected.dqkv.data(), dout.data(), rounded_out.data(), qkv.data(),
                                                     expected.stats.data(), s.B, s.T, s.NH, s.HS, documents});
  }

  using Forward = void (*)(CudaStream&, const AttentionForward<bf16>&);
  using Backward = void (*)(CudaStream&, const AttentionBackward<bf16>&, float* dbias);
  static void general_backward(CudaStream& cuda, const AttentionBackward<bf16>& args, float*) {
    attention_backward(cuda, args);
  }

  Results run(CudaStream& cuda, Forward attention_forward = gpt2::attention_forward,
              Backward backward = general_backward) const {
    DeviceBuffer<bf16> gpu_qkv(to_bf16(qkv)), gpu_dout(to_bf16(dout)), gpu_out(shape.out_size());
    DeviceBuffer<float> gpu_stats(shape.stats_size());
    DeviceBuffer<int32_t> gpu_begin(begin), gpu_end(end);
    const DocumentBounds documents = begin.empty() ? DocumentBounds{} : DocumentBounds{gpu_begin, gpu_end};
    attention_forward(
        cuda, AttentionForward<bf16>{gpu_out, gpu_stats, gpu_qkv, shape.B, shape.T, shape.NH, shape.HS, documents});
    Results results{download_floats(gpu_out), gpu_stats.download(), {}};

    gpu_out.upload(to_bf16(rounded_out));
    gpu_stats.upload(expected.stats);
    DeviceBuffer<bf16> gpu_dqkv(3 * shape.out_size());
    DeviceBuffer<float> gpu_dbias(std::vector<float>(3 * static_cast<size_t>(shape.NH) * shape.HS, kBiasBefore));
    backward(cuda,
             AttentionBackward<bf16>{gpu_dqkv, gpu_dout, gpu_out, gpu_qkv, gpu_stats, shape.B, shape.T, shape.NH,
                                     shape.HS, documents},
             gpu_dbias);
    results.dqkv = download_floats(gpu_dqkv);
    results.dbias = gpu_dbias.download();
    for (float& sum : results.dbias) sum -= kBiasBefore;
    return results;
  }

  static constexpr float kBiasBefore = 0.5f; // sums are added to

  Shape shape;
  std::vector<float> qkv, dout, rounded_out;
  std::vector<int32_t> begin, end; // of documents; empty: no mask
  Results expected;
};

// Tokens in which documents begin at `starts` of the first sequence; the others have documents of many lengths, from
// one token on.
std::vector<int32_t> packed_tokens(const Shape& s, const std::vector<int>& starts) {
  std::vector<int32_t> tokens(static_cast<size_t>(s.B) * s.T, 1);
  for (const int start : starts)
    if (start < s.T) tokens[static_cast<size_t>(start)] = 0;
  const Rng rng(9);
  for (size_t i = static_cast<size_t>(s.T), document = 0; i < tokens.size(); ++document) {
    tokens[i] = 0;
    i += 1 + rng.bits(document) % (document % 3 == 0 ? 8 : 200);
  }
  return tokens;
}

// Of one token, at a tile's edge and beside it, none in the sequence, one over all of it.
const std::vector<int> kDocumentStarts[] = {{0, 1, 2, 63, 64, 65, 127, 130}, {64}, {}, {0}, {31, 192, 255, 256}};

void check_agreement(const Results& results, const Results& expected, const Shape& shape) {
  CHECK(relative_error(results.out, expected.out) < kOutTolerance);
  CHECK(relative_error(results.stats, expected.stats) < kStatsTolerance);
  for (size_t which : {0, 1, 2}) { // dQ, dK, dV
    CAPTURE(which);
    if (which < 2 && shape.T == 1) continue; // one key: probability 1, and no gradient but dV
    CHECK(relative_error(part_of(results.dqkv, shape, which), part_of(expected.dqkv, shape, which)) <
          kGradientTolerance);
  }
}

// Of values before they were rounded. Measured by the sums of absolute values: those of dK themselves are zero but for
// rounding, because a query's score gradients add up to nothing.
void check_sums(const Results& results, const Shape& shape) {
  const std::vector<float> sums = column_sums(results.dqkv, shape);
  std::vector<float> absolute = results.dqkv;
  for (float& value : absolute) value = std::abs(value);
  absolute = column_sums(absolute, shape);
  double worst = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double error = std::abs(double{results.dbias[i]} - sums[i]) / absolute[i];
    if (!(error <= worst)) worst = error; // NaN too
  }
  CHECK(worst < kSumTolerance);
}

// Whole tiles, ragged ones, less than one; the head sizes of each kernel, and some that pad.
const Shape kShapes[] = {{1, 16, 1, 64},   {2, 64, 3, 64},  {3, 100, 2, 64}, {1, 128, 12, 64}, {2, 257, 4, 64},
                         {1, 1024, 2, 64}, {2, 100, 3, 32}, {1, 192, 5, 32}, {1, 129, 2, 128}, {2, 70, 2, 80},
                         {1, 65, 3, 16},   {2, 1, 2, 64},   {1, 63, 1, 40}};

bool has_cudnn(CudaStream& cuda) {
  if (!cuda.device->attentions->version().empty()) return true;
  MESSAGE("skipped: " << cuda.device->attentions->reason());
  return false;
}

} // namespace

TEST_CASE("our own attention agrees with the CPU") {
  TestDevice device(options_of(AttentionKind::handwritten));
  for (const Shape& shape : tested(kShapes)) {
    CAPTURE(name_of(shape));
    const Problem problem(shape);
    check_agreement(problem.run(device.cuda), problem.expected, shape);
  }
}

TEST_CASE("our own attention within documents agrees with the CPU") {
  TestDevice device(options_of(AttentionKind::handwritten));
  for (const Shape& shape : tested({Shape{3, 100, 2, 64}, Shape{2, 257, 4, 64}, Shape{2, 192, 3, 32},
                                    Shape{2, 129, 2, 128}, Shape{3, 320, 2, 64}})) {
    for (const std::vector<int>& starts : kDocumentStarts) {
      CAPTURE(name_of(shape));
      CAPTURE(starts.size());
      const Problem problem(shape, packed_tokens(shape, starts));
      check_agreement(problem.run(device.cuda), problem.expected, shape);
    }
  }
}

TEST_CASE("attention within documents for Hopper agrees with the CPU, and repeats bit for bit") {
  TestDevice device;
  if (!device.cuda.device->sm90_kernels) {
    MESSAGE("skipped: not a Hopper");
    return;
  }
  for (const Shape& shape : tested({Shape{1, 64, 2, 64}, Shape{3, 320, 2, 64}, Shape{2, 448, 3, 64},
                                    Shape{3, 1024, 2, 64}, Shape{40, 320, 7, 64}})) {
    for (const std::vector<int>& starts : kDocumentStarts) {
      CAPTURE(name_of(shape));
      CAPTURE(starts.size());
      const Problem problem(shape, packed_tokens(shape, starts));
      const Results results = problem.run(device.cuda, sm90::attention_forward, sm90::attention_backward);
      check_agreement(results, problem.expected, shape);
      check_sums(results, shape);
      const Results again = problem.run(device.cuda, sm90::attention_forward, sm90::attention_backward);
      CHECK(same_bits(again.out, results.out));
      CHECK(same_bits(again.dqkv, results.dqkv));
    }
  }
}

// One tile, whole groups of tiles and parts of them, an odd number of groups; as many heads as fill the GPU and more; a
// ring that goes round (512), and blocks with several units of two groups (40 x 320).
const Shape kHopperShapes[] = {{1, 64, 1, 64},  {2, 128, 3, 64},  {1, 192, 2, 64},   {1, 256, 5, 64}, {3, 320, 2, 64},
                               {1, 448, 2, 64}, {1, 1024, 2, 64}, {20, 128, 14, 64}, {1, 512, 1, 64}, {40, 320, 7, 64}};

TEST_CASE("attention for Hopper agrees with the CPU, and repeats bit for bit") {
  TestDevice device;
  const auto can_implement = [&](int B, int T, int HS) {
    return sm90::can_implement_attention(device.cuda.device->sm90_kernels, AttentionKind::automatic, B, T, HS);
  };
  if (!can_implement(1, 64, 64)) {
    MESSAGE("skipped: not a Hopper");
    return;
  }
  CHECK_FALSE(can_implement(1, 100, 64));
  CHECK_FALSE(can_implement(1, 128, 32));
  CHECK_FALSE(sm90::can_implement_attention(true, AttentionKind::cudnn, 1, 64, 64));
  for (const Shape& shape : tested(kHopperShapes)) {
    CAPTURE(name_of(shape));
    const Problem problem(shape);
    const Results results = problem.run(device.cuda, sm90::attention_forward, sm90::attention_backward);
    check_agreement(results, problem.expected, shape);
    check_sums(results, shape);
    const Results again = problem.run(device.cuda, sm90::attention_forward, sm90::attention_backward);
    CHECK(same_bits(again.out, results.out));
    CHECK(same_bits(again.stats, results.stats));
    CHECK(same_bits(again.dqkv, results.dqkv));
    CHECK(same_bits(again.dbias, results.dbias));
    const auto without_sums = [](CudaStream& cuda, const AttentionBackward<bf16>& args, float*) {
      sm90::attention_backward(cuda, args);
    };
    CHECK(same_bits(problem.run(device.cuda, sm90::attention_forward, without_sums).dqkv, results.dqkv));
  }
}

TEST_CASE("attention for Hopper takes the bias gradient along where the sums of every tile have room") {
  const Shape shape{2, 128, 3, 64};
  const size_t tiles = static_cast<size_t>(shape.B) * shape.T / 64;
  const size_t sums = tiles * 3 * static_cast<size_t>(shape.NH) * shape.HS;
  AttentionBackward<bf16> args{};
  args.B = shape.B, args.T = shape.T, args.NH = shape.NH, args.HS = shape.HS;
  CudaOptions just, less;
  just.scratch_bytes = (2 * shape.stats_size() + sums) * sizeof(float);
  less.scratch_bytes = just.scratch_bytes - 1;
  TestDevice enough(just), short_of_it(less);
  CHECK_FALSE(sm90::can_fuse_bias_gradient(short_of_it.cuda, args));
  REQUIRE(sm90::can_fuse_bias_gradient(enough.cuda, args));
  if (!enough.cuda.device->sm90_kernels) return;
  check_sums(Problem(shape).run(enough.cuda, sm90::attention_forward, sm90::attention_backward), shape);
}

TEST_CASE("cuDNN's attention agrees with the CPU and with ours") {
  for (bool deterministic : {false, true}) {
    CAPTURE(deterministic);
    TestDevice device(options_of(AttentionKind::automatic, deterministic));
    TestDevice own(options_of(AttentionKind::handwritten));
    if (!has_cudnn(device.cuda)) return;
    for (const Shape& shape : tested({Shape{2, 64, 3, 64}, Shape{1, 128, 12, 64}, Shape{3, 1024, 2, 64},
                                      Shape{2, 128, 4, 32}, Shape{3, 100, 2, 64}, Shape{2, 257, 4, 64}})) {
      CAPTURE(name_of(shape));
      const Problem problem(shape);
      const Results results = problem.run(device.cuda);
      check_agreement(results, problem.expected, shape);
      check_agreement(results, problem.run(own.cuda), shape);
      if (shape.T % 64 == 0) CHECK(device.cuda.device->attentions->reason() == ""); // GPT-2's shapes must not fall back
    }
  }
}

TEST_CASE("deterministic attention repeats bit for bit") {
  for (AttentionKind kind : {AttentionKind::handwritten, AttentionKind::automatic}) {
    TestDevice device(options_of(kind, true));
    const Problem problem(small_shapes_only() ? Shape{2, 160, 2, 64} : Shape{2, 512, 4, 64});
    const Results first = problem.run(device.cuda);
    for (int run = 0; run < 3; ++run) {
      const Results again = problem.run(device.cuda);
      CHECK(same_bits(again.out, first.out));
      CHECK(same_bits(again.stats, first.stats));
      CHECK(same_bits(again.dqkv, first.dqkv));
    }
  }
}

TEST_CASE("a deterministic batch beyond cuDNN's workspace limit is computed in parts") {
  if (small_shapes_only()) return;
  const Shape shape{20, 4096, 4, 64}; // 2.7 GB of dP
  TestDevice device(options_of(AttentionKind::automatic, true)), own(options_of(AttentionKind::handwritten));
  if (!has_cudnn(device.cuda)) return;
  const std::vector<float> noise = random_values(1 << 20, 3);
  const auto repeat = [&](size_t count, size_t shift) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = noise[(i + i / 786433 * 77 + shift) % noise.size()];
    return to_bf16(values);
  };
  DeviceBuffer<bf16> qkv(repeat(3 * shape.out_size(), 0)), dout(repeat(shape.out_size(), 12345));
  const auto run = [&](CudaStream& cuda) {
    DeviceBuffer<bf16> out(shape.out_size()), dqkv(3 * shape.out_size());
    DeviceBuffer<float> stats(shape.stats_size());
    attention_forward(cuda, AttentionForward<bf16>{out, stats, qkv, shape.B, shape.T, shape.NH, shape.HS});
    attention_backward(cuda,
                       AttentionBackward<bf16>{dqkv, dout, out, qkv, stats, shape.B, shape.T, shape.NH, shape.HS});
    return download_floats(dqkv);
  };
  CHECK(relative_error(run(device.cuda), run(own.cuda)) < kGradientTolerance);
  CHECK(device.cuda.device->attentions->reason() == "");
  CHECK(device.cuda.attention_workspace_bytes() < size_t{3} << 30);
  CHECK(device.cuda.attention_workspace_bytes() <=
        attention_workspace_bytes(AttentionKind::automatic, true, shape.B, shape.T, shape.NH, shape.HS));
}

TEST_CASE("cuDNN takes no more workspace than was counted before") {
  CHECK(attention_workspace_bytes(AttentionKind::handwritten, false, 64, 1024, 12, 64) == 0);
  for (bool deterministic : {false, true}) {
    for (const Shape& shape : tested({Shape{2, 64, 3, 64}, Shape{3, 100, 2, 64}, Shape{2, 1024, 12, 64}})) {
      CAPTURE(name_of(shape));
      TestDevice device(options_of(AttentionKind::automatic, deterministic));
      if (!has_cudnn(device.cuda)) return;
      Problem(shape).run(device.cuda);
      CHECK(device.cuda.attention_workspace_bytes() <=
            attention_workspace_bytes(AttentionKind::automatic, deterministic, shape.B, shape.T, shape.NH, shape.HS));
    }
  }
}

TEST_CASE("attention can be captured in a graph") {
  for (AttentionKind kind : {AttentionKind::handwritten, AttentionKind::automatic}) {
    TestDevice device(options_of(kind));
    CudaStream& cuda = device.cuda;
    const Shape shape{2, 128, 2, 64};
    DeviceBuffer<bf16> qkv(to_bf16(random_values(3 * shape.out_size(), 4)));
    DeviceBuffer<bf16> dout(to_bf16(random_values(shape.out_size(), 5)));
    DeviceBuffer<bf16> out(shape.out_size()), dqkv(3 * shape.out_size());
    DeviceBuffer<float> stats(shape.stats_size());
    const auto step = [&] {
      attention_forward(cuda, AttentionForward<bf16>{out, stats, qkv, shape.B, shape.T, shape.NH, shape.HS});
      attention_backward(cuda,
                         AttentionBackward<bf16>{dqkv, dout, out, qkv, stats, shape.B, shape.T, shape.NH, shape.HS});
    };
    step();
    const std::vector<float> expected_out = download_floats(out), expected_dqkv = download_floats(dqkv);
    out.poison();
    dqkv.poison();
    stats.poison();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(cuda.stream, cudaStreamCaptureModeThreadLocal));
    step();
    CUDA_CHECK(cudaStreamEndCapture(cuda.stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(executable, cuda.stream));
    CHECK(same_bits(download_floats(out), expected_out));
    CHECK(relative_error(download_floats(dqkv), expected_dqkv) < kGradientTolerance); // cuDNN sums dQ by atomics
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
}

TEST_CASE("a shape that cuDNN has not planned cannot start inside a capture") {
  TestDevice device;
  if (!has_cudnn(device.cuda)) return;
  const Shape shape{1, 64, 1, 64};
  DeviceBuffer<bf16> qkv(to_bf16(random_values(3 * shape.out_size(), 6))), out(shape.out_size());
  DeviceBuffer<float> stats(shape.stats_size());
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(device.cuda.stream, cudaStreamCaptureModeThreadLocal));
  const Error error = expect_error([&] {
    attention_forward(device.cuda, AttentionForward<bf16>{out, stats, qkv, shape.B, shape.T, shape.NH, shape.HS});
  });
  CUDA_CHECK(cudaStreamEndCapture(device.cuda.stream, &graph));
  cudaGraphDestroy(graph);
  CHECK(mentions(error, "T=64"));
}

TEST_CASE("head sizes that no kernel takes are refused") {
  TestDevice device(options_of(AttentionKind::handwritten));
  for (int HS : {4, 12, 136}) {
    const Error error = expect_error([&] {
      attention_forward(device.cuda, AttentionForward<bf16>{nullptr, nullptr, nullptr, 1, 16, 1, HS});
    });
    CHECK(error.code() == ExitCode::usage);
    CHECK(mentions(error, std::to_string(HS)));
  }
}

} // namespace gpt2
