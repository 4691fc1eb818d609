// Choosing, keeping and running cuBLASLt algorithms.
#include "kernels/cuda/matmul_plans.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <sstream>

#include "engine/base/files.h"
#include "engine/base/log.h"

namespace gpt2 {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20; // what cuBLAS recommends for Hopper; lies in the Cuda's scratch
constexpr int kHeuristics = 16;
constexpr float kDropBeyond = 1.2f; // candidates this much slower than the best so far are timed only once
constexpr int kRounds = 3;          // further timings of the candidates that stay
constexpr float kNever = std::numeric_limits<float>::infinity();

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  CUDA_CHECK(cudaGetLastError()); // a lost device or a kernel's fault explains more
  throw Error(ExitCode::device, std::string(what) + ": " + cublasLtGetStatusString(status),
              "check that cuBLASLt and the driver belong to the same CUDA 13");
}
#define CUBLAS_CHECK(call) check((call), #call)

cudaDataType_t cuda_type(MatmulType type) {
  switch (type) {
    case MatmulType::fp32:
      return CUDA_R_32F;
    case MatmulType::e4m3:
      return CUDA_R_8F_E4M3;
    case MatmulType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_16BF;
  }
}

const char* name_of(MatmulType type) {
  switch (type) {
    case MatmulType::fp32:
      return "fp32";
    case MatmulType::e4m3:
      return "e4m3";
    case MatmulType::e5m2:
      return "e5m2";
    default:
      return "bf16";
  }
}

const char* name_of(MatmulEpilogue epilogue) {
  switch (epilogue) {
    case MatmulEpilogue::bias:
      return "_bias";
    case MatmulEpilogue::gelu_aux_bias:
      return "_gelu";
    default:
      return "";
  }
}

cublasLtEpilogue_t cublas_epilogue(MatmulEpilogue epilogue) {
  switch (epilogue) {
    case MatmulEpilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case MatmulEpilogue::gelu_aux_bias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    default:
      return CUBLASLT_EPILOGUE_DEFAULT;
  }
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)));
}

cublasLtMatrixLayout_t make_layout(MatmulType type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, cuda_type(type), static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(columns), rows));
  return layout;
}

// 256 where every operand is so aligned, 16 where some are less: two plans, because the heuristics may use it.
int alignment_of(const MatmulOperands& operands) {
  uintptr_t bits = 0;
  for (const void* pointer : {static_cast<const void*>(operands.d), operands.a, operands.b, operands.bias,
                              static_cast<const void*>(operands.aux)}) {
    bits |= reinterpret_cast<uintptr_t>(pointer);
  }
  if (bits % 16 != 0) throw Error(ExitCode::device, "a matrix product's operand is not aligned to 16 bytes");
  return bits % 256 == 0 ? 256 : 16;
}

std::string to_hex(const cublasLtMatmulAlgo_t& algorithm) {
  std::string hex;
  for (unsigned char byte : std::string(reinterpret_cast<const char*>(&algorithm), sizeof(algorithm))) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

bool from_hex(const std::string& hex, cublasLtMatmulAlgo_t& algorithm) {
  unsigned char bytes[sizeof(algorithm)];
  if (hex.size() != 2 * sizeof(bytes)) return false;
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    int value = 0;
    for (char c : {hex[2 * i], hex[2 * i + 1]}) {
      const char* digit = std::strchr("0123456789abcdef", c);
      if (!digit || !c) return false;
      value = 16 * value + static_cast<int>(digit - "0123456789abcdef");
    }
    bytes[i] = static_cast<unsigned char>(value);
  }
  std::memcpy(&algorithm, bytes, sizeof(bytes));
  return true;
}

// Lines of "device<TAB>version<TAB>product<TAB>algorithm<TAB>microseconds"; anything else is skipped.
std::map<std::string, std::string> parse_lines(const std::string& text) {
  std::map<std::string, std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    size_t tab = std::string::npos;
    if (std::count(line.begin(), line.end(), '\t') != 4) continue;
    for (int column = 0; column < 3; ++column) tab = line.find('\t', tab + 1);
    lines[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return lines;
}

std::string read_plan_file(const std::string& path) {
  return !path.empty() && std::filesystem::exists(path) ? read_text_file(path, ExitCode::disk) : "";
}

struct Preference {
  Preference() { CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&value)); }
  ~Preference() { cublasLtMatmulPreferenceDestroy(value); }
  Preference(const Preference&) = delete;
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T setting) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(value, attribute, &setting, sizeof(setting)));
  }
  cublasLtMatmulPreference_t value = nullptr;
};

struct Event {
  Event() { CUDA_CHECK(cudaEventCreate(&value)); }
  ~Event() { cudaEventDestroy(value); }
  Event(const Event&) = delete;
  cudaEvent_t value = nullptr;
};

// A copy of the output's size for timing products that accumulate; empty when there is no memory left for it.
class TemporaryOutput {
 public:
  explicit TemporaryOutput(size_t bytes) {
    if (bytes == 0) return;
    if (cudaMalloc(&pointer_, bytes) != cudaSuccess) {
      pointer_ = nullptr;
      cudaGetLastError();
    } else {
      CUDA_CHECK(cudaMemset(pointer_, 0, bytes));
      CUDA_CHECK(cudaDeviceSynchronize());
    }
  }
  ~TemporaryOutput() { cudaFree(pointer_); }
  TemporaryOutput(const TemporaryOutput&) = delete;
  void* get() const { return pointer_; }

 private:
  void* pointer_ = nullptr;
};

} // namespace

std::string MatmulProduct::name() const {
  std::ostringstream out;
  out << (transpose_a ? 'T' : 'N') << (transpose_b ? 'T' : 'N') << '_' << m << 'x' << n << 'x' << k << '_' << name_of(a)
      << '_' << name_of(b) << '_' << name_of(d) << name_of(epilogue) << (accumulate ? "_accumulate" : "")
      << (fast_accumulation ? "_fast" : "") << (alignment < 256 ? "_unaligned" : "");
  return out.str();
}

struct MatmulPlans::Algorithm {
  cublasLtMatmulAlgo_t algorithm{};
  float microseconds = 0; // 0: not timed

  std::string to_text() const {
    char time[32];
    std::snprintf(time, sizeof(time), "%.2f", microseconds);
    return to_hex(algorithm) + '\t' + time;
  }
};

struct MatmulPlans::Plan {
  explicit Plan(const MatmulProduct& p) : product(p) {
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(description, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(description, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, cublas_epilogue(p.epilogue));
    if (p.epilogue == MatmulEpilogue::bias || p.epilogue == MatmulEpilogue::gelu_aux_bias) {
      set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    }
    if (p.epilogue == MatmulEpilogue::gelu_aux_bias) {
      set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.m);
    }
    if (p.fast_accumulation) set(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    a = p.transpose_a ? make_layout(p.a, p.k, p.m) : make_layout(p.a, p.m, p.k);
    b = p.transpose_b ? make_layout(p.b, p.n, p.k) : make_layout(p.b, p.k, p.n);
    d = make_layout(p.d, p.m, p.n);
  }
  ~Plan() {
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatmulDescDestroy(description);
  }
  Plan(const Plan&) = delete;

  void bind(const MatmulOperands& operands) const {
    if (operands.bias) set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    if (operands.aux) set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
    if (operands.a_scale) set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.a_scale);
    if (operands.b_scale) set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.b_scale);
  }

  MatmulProduct product;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  Algorithm chosen;
  bool tuned = false;
};

MatmulPlans::MatmulPlans(Cuda& cuda) : cuda_(cuda) {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, cuda.options.device));
  prefix_ = std::string(properties.name) + '\t' + std::to_string(cublasLtGetVersion()) + '\t';
  try {
    saved_ = parse_lines(read_plan_file(cuda.options.plan_cache));
  } catch (const Error& error) { // plans cost time, not results
    log_warn(std::string("matrix product plans are not read: ") + error.what());
  }
  CUBLAS_CHECK(cublasLtCreate(&handle_));
}

MatmulPlans::~MatmulPlans() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

void MatmulPlans::run(MatmulProduct product, const MatmulOperands& operands) {
  if (product.m == 0 || product.n == 0 || product.k == 0) return;
  product.alignment = alignment_of(operands);
  const Plan& plan = plan_for(product, operands);
  plan.bind(operands);
  if (!launch(plan, plan.chosen, operands)) {
    CUDA_CHECK(cudaGetLastError());
    throw Error(ExitCode::device, "cuBLASLt failed on " + product.name(),
                "delete the plan cache, and check that cuBLASLt and the driver belong to the same CUDA 13");
  }
}

MatmulPlans::Plan& MatmulPlans::plan_for(const MatmulProduct& product, const MatmulOperands& operands) {
  const auto found = plans_.find(product);
  if (found != plans_.end()) return *found->second;

  auto plan = std::make_unique<Plan>(product);
  plan->bind(operands); // the heuristics look at the alignment of bias and aux
  if (!use_saved(*plan)) {
    std::vector<Algorithm> candidates = heuristics(*plan);
    plan->chosen = candidates.front();
    if (!cuda_.options.deterministic && !capturing()) tune(*plan, candidates, operands);
    if (plan->tuned) save(*plan);
  }
  return *plans_.emplace(product, std::move(plan)).first->second;
}

// A saved algorithm that this library still accepts for this product.
bool MatmulPlans::use_saved(Plan& plan) const {
  const auto line = saved_.find(prefix_ + plan.product.name());
  if (line == saved_.end()) return false;
  const size_t tab = line->second.find('\t');
  Algorithm saved;
  if (!from_hex(line->second.substr(0, tab), saved.algorithm)) return false;
  cublasLtMatmulHeuristicResult_t result;
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, plan.description, plan.a, plan.b, plan.d, plan.d, &saved.algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspace) return false;
  saved.microseconds = std::strtof(line->second.c_str() + tab + 1, nullptr);
  plan.chosen = saved;
  return true;
}

// The library's candidates, best guess first. Split sums must be kept in FP32 and added by a second pass: neither in
// the order in which blocks finish, nor rounded to BF16.
std::vector<MatmulPlans::Algorithm> MatmulPlans::heuristics(const Plan& plan) const {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspace});
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    preference.set(attribute, static_cast<uint32_t>(plan.product.alignment));
  }

  cublasLtMatmulHeuristicResult_t results[kHeuristics];
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, plan.description, plan.a, plan.b, plan.d,
                                                               plan.d, preference.value, kHeuristics, results, &count);
  std::vector<Algorithm> candidates;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) candidates.push_back({results[i].algo, 0});
  }
  if (candidates.empty()) {
    throw Error(ExitCode::device,
                "cuBLASLt has no algorithm for " + plan.product.name() + ": " + cublasLtGetStatusString(status),
                "check that cuBLASLt and the driver belong to the same CUDA 13");
  }
  return candidates;
}

// Runs every candidate at least twice. D is overwritten, except where the product accumulates: then a copy of its
// size stands in.
void MatmulPlans::tune(Plan& plan, std::vector<Algorithm>& candidates, const MatmulOperands& operands) const {
  const MatmulProduct& p = plan.product;
  MatmulOperands timed = operands;
  const size_t bytes = p.accumulate ? static_cast<size_t>(p.m * p.n) * (p.d == MatmulType::fp32 ? 4 : 2) : 0;
  const TemporaryOutput copy(bytes);
  if (p.accumulate) {
    if (!copy.get()) return; // no memory for timing: the first heuristic stays
    timed.d = copy.get();
  }

  float best = kNever;
  for (Algorithm& candidate : candidates) {
    time(plan, candidate, timed, 1); // loads the kernel
    candidate.microseconds = time(plan, candidate, timed, 1);
    best = std::min(best, candidate.microseconds);
  }
  if (best == kNever) return;
  const int repeats = std::clamp(static_cast<int>(200 / best), 1, 20); // short kernels are timed for 0.2 ms
  for (int round = 0; round < kRounds; ++round) {
    for (Algorithm& candidate : candidates) {
      if (candidate.microseconds > kDropBeyond * best) continue;
      const float microseconds = time(plan, candidate, timed, repeats);
      candidate.microseconds = std::min(candidate.microseconds, microseconds);
      best = std::min(best, microseconds);
    }
  }
  plan.chosen = *std::min_element(candidates.begin(), candidates.end(), [](const Algorithm& x, const Algorithm& y) {
    return x.microseconds < y.microseconds;
  });
  plan.tuned = true;
}

// Microseconds per run; infinity when the algorithm does not run.
float MatmulPlans::time(const Plan& plan, const Algorithm& algorithm, const MatmulOperands& operands,
                        int repeats) const {
  const Event start, stop;
  CUDA_CHECK(cudaEventRecord(start.value, cuda_.stream));
  for (int i = 0; i < repeats; ++i) {
    if (!launch(plan, algorithm, operands)) return kNever;
  }
  CUDA_CHECK(cudaEventRecord(stop.value, cuda_.stream));
  CUDA_CHECK(cudaEventSynchronize(stop.value));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.value, stop.value));
  return 1000 * milliseconds / static_cast<float>(repeats);
}

bool MatmulPlans::launch(const Plan& plan, const Algorithm& algorithm, const MatmulOperands& operands) const {
  const float alpha = 1.0f, beta = plan.product.accumulate ? 1.0f : 0.0f;
  return cublasLtMatmul(handle_, plan.description, &alpha, operands.a, plan.a, operands.b, plan.b, &beta, operands.d,
                        plan.d, operands.d, plan.d, &algorithm.algorithm, cuda_.scratch<std::byte>(kWorkspace),
                        kWorkspace, cuda_.stream) == CUBLAS_STATUS_SUCCESS;
}

bool MatmulPlans::capturing() const {
  cudaStreamCaptureStatus status;
  CUDA_CHECK(cudaStreamIsCapturing(cuda_.stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// The file may have grown since it was read, and holds plans of other devices: merge, then replace it whole.
void MatmulPlans::save(const Plan& plan) {
  const std::string key = prefix_ + plan.product.name();
  saved_[key] = plan.chosen.to_text();
  const std::string& path = cuda_.options.plan_cache;
  if (path.empty() || save_failed_) return;
  try {
    std::map<std::string, std::string> lines = parse_lines(read_plan_file(path));
    lines[key] = saved_[key];
    std::string text;
    for (const auto& [k, v] : lines) text += k + '\t' + v + '\n';
    write_file_atomic(path, text);
  } catch (const Error& error) { // a run goes on without the file
    save_failed_ = true;
    log_warn(std::string("matrix product plans are not kept: ") + error.what());
  }
}

std::string MatmulPlans::to_text() const {
  std::string text;
  for (const auto& [product, plan] : plans_) {
    text += prefix_ + product.name() + '\t' + plan->chosen.to_text() + '\n';
  }
  return text;
}

void MatmulPlans::from_text(const std::string& text) {
  for (const auto& [key, value] : parse_lines(text)) saved_[key] = value;
  plans_.clear(); // made anew from the saved ones at next use
}

std::vector<MatmulPlans::Entry> MatmulPlans::entries() const {
  std::vector<Entry> entries;
  for (const auto& [product, plan] : plans_) {
    entries.push_back({product.name(), plan->chosen.microseconds, plan->tuned});
  }
  return entries;
}

} // namespace gpt2
