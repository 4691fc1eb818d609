// How a product is chosen: timed, remembered, pinned by a checkpoint, ours or cuBLASLt's.
#include "kernels/cuda/gemm_plans.h"

#include <sstream>

#include "engine/system/files.h"
#include "kernels/gemm.h"
#include "tests/contains.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/tiled_gemm.h"
#include "tests/temporary_folder.h"

namespace gpt2 {
namespace {

constexpr double kBf16Tolerance = 3e-3;

// out (rows, OC) = in weight^T, the same numbers on both sides.
struct Layer {
  Layer(int64_t rows, int C, int OC)
      : rows(rows),
        C(C),
        OC(OC),
        in(random_values(static_cast<size_t>(rows * C), 1)),
        weight(random_values(static_cast<size_t>(C) * OC, 2, 0.1f)),
        expected(static_cast<size_t>(rows * OC)),
        gpu_in(to_bf16(in)),
        gpu_weight(to_bf16(weight)),
        out(expected.size()) {
    Cpu cpu;
    gemm_forward(cpu, GemmForward<float>{expected.data(), in.data(), weight.data(), nullptr, rows, C, OC});
  }

  std::vector<bf16> run(CudaStream& cuda) {
    out.poison();
    gemm_forward(cuda, GemmForward<bf16>{out, gpu_in, gpu_weight, nullptr, rows, C, OC});
    CHECK(relative_error(download_floats(out), expected) < kBf16Tolerance);
    return out.download();
  }

  int64_t rows;
  int C, OC;
  std::vector<float> in, weight, expected;
  DeviceBuffer<bf16> gpu_in, gpu_weight, out;
};

GemmPlans::Entry only_entry(CudaStream& cuda) {
  const auto entries = cuda.device->gemms->entries();
  REQUIRE(entries.size() == 1);
  return entries[0];
}

CudaOptions options_with(const std::string& plan_cache, bool deterministic = false) {
  CudaOptions options;
  options.plan_cache = plan_cache;
  options.deterministic = deterministic;
  return options;
}

// Everything of a plan but its time.
std::string without_times(const std::string& text) {
  std::string kept;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) kept += line.substr(0, line.rfind('\t')) + '\n';
  return kept;
}

} // namespace

TEST_CASE("a plan is tuned once, kept in the file, and found there by the next process") {
  const TemporaryFolder folder;
  const CudaOptions options = options_with(folder / "plans.txt");
  const std::string foreign = "Another GPU\t1\tTN_1x1x1_bf16_bf16_bf16\t00\t1.00\n";
  write_file_atomic(options.plan_cache, foreign);
  Layer layer(256, 768, 768);
  TestDevice first(options);
  const std::vector<bf16> bits = layer.run(first.cuda);
  const std::string plans = first.cuda.device->gemms->to_text();
  CHECK(only_entry(first.cuda).tuned);
  CHECK(only_entry(first.cuda).microseconds > 0);
  CHECK(only_entry(first.cuda).problem == "TN_768x256x768_bf16_bf16_bf16");
  CHECK(contains(read_text_file(options.plan_cache), foreign));
  CHECK(contains(read_text_file(options.plan_cache), plans));

  TestDevice second(options);
  CHECK(same_bits(layer.run(second.cuda), bits));
  CHECK(second.cuda.device->gemms->to_text() == plans);
  CHECK_FALSE(only_entry(second.cuda).tuned);
}

TEST_CASE("the file's folder is made, so that a fresh machine tunes once and not at every start") {
  const TemporaryFolder folder;
  const CudaOptions options = options_with(folder / "not/yet/there/plans.txt");
  Layer layer(128, 768, 768);
  TestDevice first(options);
  layer.run(first.cuda);
  CHECK(only_entry(first.cuda).tuned);
  TestDevice second(options);
  layer.run(second.cuda);
  CHECK_FALSE(only_entry(second.cuda).tuned);
}

TEST_CASE("a damaged or unwritable plan file costs a tuning, not the run") {
  const TemporaryFolder folder;
  Layer layer(128, 768, 768);
  const auto tunes = [&](const std::string& path) {
    TestDevice device(options_with(path));
    layer.run(device.cuda);
    CHECK(only_entry(device.cuda).tuned);
  };
  const std::string path = folder / "plans.txt";
  tunes(path);
  const std::string text = read_text_file(path);
  const size_t algorithm = text.rfind('\t', text.rfind('\t') - 1) + 1;
  write_file_atomic(path, text.substr(0, algorithm) + "zz" + text.substr(algorithm + 2)); // not hexadecimal
  tunes(path);
  write_file_atomic(path, text.substr(0, algorithm + 10)); // cut short
  tunes(path);
  write_file_atomic(path, text.substr(0, algorithm) + "own/gone_kernel\t1.00\n"); // of another build
  tunes(path);
  tunes(folder.path()); // a folder, where a file is expected
}

TEST_CASE("deterministic runs never time, and take the plans of a checkpoint") {
  Layer layer(512, 768, 3072);
  TestDevice tuned;
  layer.run(tuned.cuda);
  const std::string tuned_plans = tuned.cuda.device->gemms->to_text();
  std::vector<std::vector<bf16>> results;
  std::vector<std::string> plans;
  for (int run = 0; run < 2; ++run) {
    TestDevice device(options_with("", true));
    results.push_back(layer.run(device.cuda));
    plans.push_back(device.cuda.device->gemms->to_text());
    CHECK_FALSE(only_entry(device.cuda).tuned);
    CHECK(only_entry(device.cuda).microseconds == 0);

    device.cuda.device->gemms->from_text(tuned_plans);
    layer.run(device.cuda);
    CHECK(device.cuda.device->gemms->to_text() == tuned_plans);
  }
  CHECK(plans[0] == plans[1]);
  CHECK(same_bits(results[0], results[1]));
}

TEST_CASE("deterministic runs do not read what an earlier run has timed") {
  const TemporaryFolder folder;
  const std::string path = folder / "plans.txt";
  Layer layer(512, 768, 3072);
  TestDevice untouched(options_with("", true));
  layer.run(untouched.cuda);
  const std::string first_heuristic = without_times(untouched.cuda.device->gemms->to_text());

  TestDevice timed(options_with(path));
  layer.run(timed.cuda);
  const std::string text = read_text_file(path);
  CHECK(text == timed.cuda.device->gemms->to_text());

  TestDevice device(options_with(path, true));
  layer.run(device.cuda);
  CHECK(without_times(device.cuda.device->gemms->to_text()) == first_heuristic);
  CHECK(only_entry(device.cuda).microseconds == 0); // a plan of the file would have brought its time
  CHECK(read_text_file(path) == text);              // nor does it write there
}

TEST_CASE("a kernel of ours competes with cuBLASLt, is right, and is remembered by its name") {
  const TemporaryFolder folder;
  const CudaOptions options = options_with(folder / "plans.txt");
  Layer layer(64, 80, 48);
  std::string mine; // a checkpoint's line for this product by our kernel
  {
    TestDevice device(options);
    device.cuda.device->gemms->add(tiled_gemm());
    layer.run(device.cuda); // whoever wins
    CHECK(only_entry(device.cuda).tuned);
    CHECK(contains(read_text_file(options.plan_cache), "+tiled_gemm\tTN_48x64x80_bf16_bf16_bf16\t"));
    const std::string line = device.cuda.device->gemms->to_text();
    const size_t choice = line.rfind('\t', line.rfind('\t') - 1) + 1;
    mine = line.substr(0, choice) + "own/tiled_gemm\t1.00\n";

    device.cuda.device->gemms->from_text(mine);
    const std::vector<bf16> bits = layer.run(device.cuda);
    CHECK(only_entry(device.cuda).method == "tiled_gemm");
    CHECK(device.cuda.device->gemms->to_text() == mine);
    CHECK(same_bits(layer.run(device.cuda), bits));
  }
  TestDevice without(options); // a build that does not have the kernel goes back to the library
  without.cuda.device->gemms->from_text(mine);
  layer.run(without.cuda);
  CHECK(only_entry(without.cuda).method == "cublaslt");
}

TEST_CASE("a remembered choice does not keep a new kernel from being timed") {
  const TemporaryFolder folder;
  const CudaOptions options = options_with(folder / "plans.txt");
  Layer layer(64, 80, 48);
  TestDevice before(options);
  layer.run(before.cuda);
  TestDevice after(options);
  after.cuda.device->gemms->add(tiled_gemm());
  layer.run(after.cuda);
  CHECK(only_entry(after.cuda).tuned);
  TestDevice again(options);
  again.cuda.device->gemms->add(tiled_gemm());
  layer.run(again.cuda);
  CHECK_FALSE(only_entry(again.cuda).tuned);
}

TEST_CASE("a kernel of ours is left alone by products that it does not take") {
  TestDevice device;
  device.cuda.device->gemms->add(tiled_gemm());
  const std::vector<float> dout = random_values(64 * 48, 1), in = random_values(64 * 80, 2);
  DeviceBuffer<bf16> gpu_dout(to_bf16(dout)), gpu_in(to_bf16(in));
  std::vector<float> expected(48 * 80, 0.0f);
  DeviceBuffer<float> dweight(expected);
  gemm_backward_weight(device.cpu, GemmBackwardWeight<float>{expected.data(), dout.data(), in.data(), 64, 80, 48});
  gemm_backward_weight(device.cuda, GemmBackwardWeight<bf16>{dweight, gpu_dout, gpu_in, 64, 80, 48});
  CHECK(relative_error(dweight.download(), expected) < 1e-4);
  CHECK(only_entry(device.cuda).method == "cublaslt");
}

} // namespace gpt2
