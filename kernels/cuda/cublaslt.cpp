#include "kernels/cuda/cublaslt.h"

#include <cublasLt.h>

#include <cstring>
#include <iterator>

namespace gpt2 {
namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(CublasLtAlgorithm));

constexpr int kHeuristics = 16;

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  CUDA_CHECK(cudaGetLastError()); // a lost device or a kernel fault explains more
  throw Error(ExitCode::device, std::string(what) + ": " + cublasLtGetStatusString(status),
              "check that cuBLASLt and the driver belong to the same CUDA 13");
}
#define CUBLAS_CHECK(call) check((call), #call)

constexpr cudaDataType_t kTypes[] = {CUDA_R_16BF, CUDA_R_32F, CUDA_R_8F_E4M3,
                                     CUDA_R_8F_E5M2}; // in the order of GemmType
constexpr cublasLtEpilogue_t kEpilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                             CUBLASLT_EPILOGUE_GELU_AUX_BIAS}; // in the order of GemmEpilogue
static_assert(std::size(kTypes) == static_cast<size_t>(GemmType::e5m2) + 1);
static_assert(std::size(kEpilogues) == static_cast<size_t>(GemmEpilogue::gelu_aux_bias) + 1);

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)));
}

cublasLtMatrixLayout_t make_layout(GemmType type, int64_t rows, int64_t columns, int64_t batch) {
  cublasLtMatrixLayout_t layout = nullptr;
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, kTypes[static_cast<size_t>(type)], static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(columns), rows));
  if (batch == 1) return layout;
  const auto count = static_cast<int32_t>(batch);
  const int64_t stride = rows * columns;
  CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
  CUBLAS_CHECK(
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
  return layout;
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

cublasLtMatmulAlgo_t library_form(const CublasLtAlgorithm& algorithm) {
  cublasLtMatmulAlgo_t form;
  std::memcpy(&form, algorithm.bits.data(), sizeof(form));
  return form;
}

} // namespace

size_t cublaslt_version() { return cublasLtGetVersion(); }

CublasLt::CublasLt() { CUBLAS_CHECK(cublasLtCreate(&handle_)); }
CublasLt::~CublasLt() { cublasLtDestroy(handle_); }

// ---- algorithms as text: the bytes in memory order ----

std::string CublasLtAlgorithm::to_hex() const {
  std::string hex;
  for (unsigned char byte : std::string(reinterpret_cast<const char*>(bits.data()), sizeof(bits))) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

std::optional<CublasLtAlgorithm> CublasLtAlgorithm::from_hex(const std::string& hex) {
  unsigned char bytes[sizeof(CublasLtAlgorithm)];
  if (hex.size() != 2 * sizeof(bytes)) return std::nullopt;
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    int value = 0;
    for (char c : {hex[2 * i], hex[2 * i + 1]}) {
      const char* digit = std::strchr("0123456789abcdef", c);
      if (!digit || !c) return std::nullopt;
      value = 16 * value + static_cast<int>(digit - "0123456789abcdef");
    }
    bytes[i] = static_cast<unsigned char>(value);
  }
  CublasLtAlgorithm algorithm;
  std::memcpy(algorithm.bits.data(), bytes, sizeof(bytes));
  return algorithm;
}

// ---- one GEMM ----

struct CublasLtGemm::Description {
  explicit Description(const GemmProblem& p) {
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&gemm, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(gemm, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(gemm, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(gemm, CUBLASLT_MATMUL_DESC_EPILOGUE, kEpilogues[static_cast<size_t>(p.epilogue)]);
    if (p.epilogue != GemmEpilogue::none) set(gemm, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    if (p.epilogue == GemmEpilogue::gelu_aux_bias) set(gemm, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.m);
    if (p.fast_accumulation) set(gemm, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    a = p.transpose_a ? make_layout(p.a, p.k, p.m, p.batch) : make_layout(p.a, p.m, p.k, p.batch);
    b = p.transpose_b ? make_layout(p.b, p.n, p.k, p.batch) : make_layout(p.b, p.k, p.n, p.batch);
    d = make_layout(p.d, p.m, p.n, p.batch);
  }
  ~Description() {
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatmulDescDestroy(gemm);
  }
  Description(const Description&) = delete;

  cublasLtMatmulDesc_t gemm = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
};

CublasLtGemm::CublasLtGemm(const CublasLt& library, const GemmProblem& problem)
    : library_(library), problem_(problem), description_(std::make_unique<Description>(problem)) {}
CublasLtGemm::~CublasLtGemm() = default;

void CublasLtGemm::bind(const GemmArguments& operands) const {
  if (operands.bias) set(description_->gemm, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  if (operands.aux) set(description_->gemm, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
  if (operands.a_scale) set(description_->gemm, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.a_scale);
  if (operands.b_scale) set(description_->gemm, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.b_scale);
}

// Split-K sums stay in FP32 and are added by a second pass: not in the order in which CTAs finish, and not rounded to
// BF16.
std::vector<CublasLtAlgorithm> CublasLtGemm::heuristics() const {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kGemmWorkspaceBytes});
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    preference.set(attribute, static_cast<uint32_t>(problem_.alignment));
  }

  cublasLtMatmulHeuristicResult_t results[kHeuristics];
  int count = 0;
  const auto ask = [&] {
    return cublasLtMatmulAlgoGetHeuristic(library_.handle(), description_->gemm, description_->a, description_->b,
                                          description_->d, description_->d, preference.value, kHeuristics, results,
                                          &count);
  };
  cublasStatus_t status = ask();
  if (problem_.fast_accumulation &&
      (status != CUBLAS_STATUS_SUCCESS || count == 0)) { // a hint that not every GPU takes
    set(description_->gemm, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0});
    status = ask();
  }
  std::vector<CublasLtAlgorithm> algorithms;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    std::memcpy(algorithms.emplace_back().bits.data(), &results[i].algo, sizeof(results[i].algo));
  }
  if (algorithms.empty()) {
    throw Error(ExitCode::device,
                "cuBLASLt has no algorithm for " + problem_.name() + ": " + cublasLtGetStatusString(status),
                "check that cuBLASLt and the driver belong to the same CUDA 13");
  }
  return algorithms;
}

bool CublasLtGemm::accepts(const CublasLtAlgorithm& algorithm) const {
  const cublasLtMatmulAlgo_t form = library_form(algorithm);
  cublasLtMatmulHeuristicResult_t result;
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(library_.handle(), description_->gemm, description_->a, description_->b, description_->d,
                              description_->d, &form, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kGemmWorkspaceBytes;
}

bool CublasLtGemm::launch(CudaStream& cuda, const CublasLtAlgorithm& algorithm, const GemmArguments& operands) const {
  const cublasLtMatmulAlgo_t form = library_form(algorithm);
  const float alpha = operands.alpha, beta = problem_.residual ? operands.beta : problem_.accumulate ? 1.0f : 0.0f;
  const void* const c = problem_.residual ? operands.c : operands.d;
  return cublasLtMatmul(library_.handle(), description_->gemm, &alpha, operands.a, description_->a, operands.b,
                        description_->b, &beta, c, description_->d, operands.d, description_->d, &form,
                        cuda.gemm_workspace, kGemmWorkspaceBytes, cuda.stream) == CUBLAS_STATUS_SUCCESS;
}

} // namespace gpt2
