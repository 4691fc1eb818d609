// cuDNN SDPA on packed QKV, through cudnn-frontend. The only file that includes cudnn_frontend.h: it takes 90 s to
// compile.
#include "kernels/cuda/attention_cudnn.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "engine/base/divisors.h"
#include "engine/base/log.h"

namespace gpt2 {
namespace {

// The deterministic backward pass stores dP, (B, NH, T, T) in BF16, T rounded up to tiles. Above this size the batch is
// processed in equal parts.
constexpr int64_t kDeterministicWorkspace = int64_t{2} << 30;

int64_t deterministic_bytes_per_sequence(int T, int NH) {
  const int64_t queries = (T + 63) / 64 * 64, keys = (T + 127) / 128 * 128;
  return 2 * NH * queries * keys;
}

// Sequences per part: the largest divisor of B within the limit, at least one.
int deterministic_part(int B, int T, int NH) {
  const int64_t fitting = kDeterministicWorkspace / deterministic_bytes_per_sequence(T, NH);
  return largest_divisor_at_most(B, static_cast<int>(std::clamp<int64_t>(fitting, 1, B)));
}

} // namespace

// As cudnn-frontend computes it for the backward pass: row sums of dO * O, and FP32 sums of dQ or dP. What cuDNN's
// engines add (counters, padding) is not documented: 16 MiB are reserved, and a GPU test compares with the actual size.
size_t attention_workspace_bytes(AttentionKind kind, bool deterministic, int B, int T, int NH, int HS) {
  if (kind == AttentionKind::handwritten) return 0;
  const int64_t rows = int64_t{B} * T * NH;
  const int64_t gradient = deterministic ? deterministic_part(B, T, NH) * deterministic_bytes_per_sequence(T, NH)
                                         : rows * HS * int64_t{sizeof(float)};
  return static_cast<size_t>(rows * int64_t{sizeof(float)} + gradient + (int64_t{16} << 20));
}

} // namespace gpt2

#ifdef GPT2_WITH_CUDNN

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cmath>
#include <compare>
#include <cstdlib>
#include <map>
#include <unordered_map>
#include <vector>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr; // the frontend looks up cuDNN functions here
}

namespace gpt2 {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kQ = 1, kK, kV, kOut, kStats, kDout, kDq, kDk, kDv };

struct Shape {
  bool backward;
  int B, T, NH, HS;
  auto operator<=>(const Shape&) const = default; // NOLINT(modernize-use-nullptr)

  std::string to_string() const {
    return "B=" + std::to_string(B) + " T=" + std::to_string(T) + " NH=" + std::to_string(NH) +
           " HS=" + std::to_string(HS) + (backward ? " backward" : " forward");
  }
};

// A built graph for `batch` sequences, executed B / batch times; null if cuDNN rejects the shape.
struct Plan {
  std::unique_ptr<fe::graph::Graph> graph;
  int batch = 0;
  size_t workspace_bytes = 0;
  std::string refusal;
};

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void check(fe::error_t status) {
  if (status.is_bad()) throw std::runtime_error(status.get_message());
}

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(what) + " failed with status " + std::to_string(status));
  }
}

// cuDNN's view (B, NH, T, HS) of a slice of (B, T, 3, NH, HS), or of (B, T, NH, HS).
fe::graph::Tensor_attributes slice(const Shape& s, int batch, int64_t slices, Uid uid) {
  const int64_t row = slices * s.NH * s.HS;
  fe::graph::Tensor_attributes tensor;
  tensor.set_uid(uid).set_dim({batch, s.NH, s.T, s.HS}).set_stride({s.T * row, s.HS, row, 1});
  tensor.set_data_type(fe::DataType_t::BFLOAT16);
  return tensor;
}

fe::graph::Tensor_attributes stats_tensor(const Shape& s, int batch) {
  const int64_t NH = s.NH, T = s.T;
  fe::graph::Tensor_attributes tensor;
  tensor.set_uid(kStats).set_dim({batch, NH, T, 1}).set_stride({NH * T, T, 1, 1});
  tensor.set_data_type(fe::DataType_t::FLOAT);
  return tensor;
}

// The graph infers the dimensions of its outputs; stride and uid are set here.
void describe_output(const Tensor& output, const fe::graph::Tensor_attributes& as) {
  output->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
  output->set_data_type(as.get_data_type());
}

void describe_forward(fe::graph::Graph& graph, const Shape& s, int batch) {
  const Tensor q = graph.tensor(slice(s, batch, 3, kQ));
  const Tensor k = graph.tensor(slice(s, batch, 3, kK));
  const Tensor v = graph.tensor(slice(s, batch, 3, kV));
  fe::graph::SDPA_attributes options;
  options.set_name("attention_forward").set_generate_stats(true).set_causal_mask(true);
  options.set_attn_scale(1.0f / std::sqrt(static_cast<float>(s.HS)));
  const auto [out, stats] = graph.sdpa(q, k, v, options);
  describe_output(out, slice(s, batch, 1, kOut));
  describe_output(stats, stats_tensor(s, batch));
}

void describe_backward(fe::graph::Graph& graph, const Shape& s, int batch, bool deterministic) {
  const Tensor q = graph.tensor(slice(s, batch, 3, kQ));
  const Tensor k = graph.tensor(slice(s, batch, 3, kK));
  const Tensor v = graph.tensor(slice(s, batch, 3, kV));
  const Tensor out = graph.tensor(slice(s, batch, 1, kOut));
  const Tensor dout = graph.tensor(slice(s, batch, 1, kDout));
  const Tensor stats = graph.tensor(stats_tensor(s, batch));
  fe::graph::SDPA_backward_attributes options;
  options.set_name("attention_backward").set_causal_mask(true).set_deterministic_algorithm(deterministic);
  options.set_attn_scale(1.0f / std::sqrt(static_cast<float>(s.HS)));
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, stats, options);
  describe_output(dq, slice(s, batch, 3, kDq));
  describe_output(dk, slice(s, batch, 3, kDk));
  describe_output(dv, slice(s, batch, 3, kDv));
}

} // namespace

struct AttentionPlans::Cudnn {
  explicit Cudnn(bool deterministic) : deterministic(deterministic) {
    // With two CUDA runtimes on the library path the frontend would load the older one, whose structures differ.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", "libcudart.so.13", 0);
    static_assert(CUDART_VERSION / 1000 == 13);
    if (!fe::cudnn_dlhandle) fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!fe::cudnn_dlhandle) throw std::runtime_error(dlerror());
    check(fe::detail::create_handle(&handle), "cudnnCreate");
  }
  ~Cudnn() {
    plans.clear();
    fe::detail::destroy_handle(handle);
  }
  Cudnn(const Cudnn&) = delete;

  const Plan& plan(const CudaStream& cuda, const Shape& shape) {
    const auto found = plans.find(shape);
    if (found != plans.end()) return found->second;
    if (cuda.capturing()) {
      throw Error(ExitCode::device, "attention of a new shape inside a captured graph: " + shape.to_string(),
                  "run a step with this batch shape once before capturing it");
    }
    Plan plan;
    try {
      plan = build(shape);
    } catch (const Error&) {
      throw; // out of memory, a lost device
    } catch (const std::exception& error) {
      plan.refusal = "cuDNN refuses " + shape.to_string() + ": " + error.what();
    }
    return plans.emplace(shape, std::move(plan)).first->second;
  }

  Plan build(const Shape& shape) const {
    Plan plan;
    plan.batch = shape.backward && deterministic ? deterministic_part(shape.B, shape.T, shape.NH) : shape.B;
    plan.graph = std::make_unique<fe::graph::Graph>();
    plan.graph->set_io_data_type(fe::DataType_t::BFLOAT16);
    plan.graph->set_intermediate_data_type(fe::DataType_t::FLOAT).set_compute_data_type(fe::DataType_t::FLOAT);
    if (shape.backward) {
      describe_backward(*plan.graph, shape, plan.batch, deterministic);
    } else {
      describe_forward(*plan.graph, shape, plan.batch);
    }
    check(plan.graph->validate());
    check(plan.graph->build_operation_graph(handle));
    check(plan.graph->create_execution_plans({fe::HeurMode_t::A}));
    check(plan.graph->check_support());
    check(plan.graph->build_plans());
    int64_t bytes = 0;
    check(plan.graph->get_workspace_size(bytes));
    plan.workspace_bytes = static_cast<size_t>(bytes);
    return plan;
  }

  void execute(CudaStream& cuda, const Plan& plan, std::unordered_map<int64_t, void*>& tensors) {
    void* const workspace = cuda.attention_workspace(plan.workspace_bytes);
    try {
      if (stream != cuda.stream) check(fe::detail::set_stream(handle, cuda.stream), "cudnnSetStream");
      stream = cuda.stream;
      check(plan.graph->execute(handle, tensors, workspace));
    } catch (const std::runtime_error& error) {
      CUDA_CHECK(cudaPeekAtLastError()); // a lost device explains more than cuDNN's status
      throw Error(ExitCode::device, std::string("cuDNN attention failed: ") + error.what(),
                  "try --attention own, or another cuDNN 9 release");
    }
  }

  bool deterministic;
  cudnnHandle_t handle = nullptr;
  cudaStream_t stream = nullptr; // current stream of the handle
  std::map<Shape, Plan> plans;
};

AttentionPlans::AttentionPlans(const CudaDevice& device) : device_(device) {
  if (device.options.attention == AttentionKind::handwritten) reason_ = "not asked for";
  if (device.options.attention == AttentionKind::cudnn) { // fail now, not at the first step
    if (const std::string why_not = open(); !why_not.empty()) refuse(why_not);
  }
}

// Loads cuDNN on first use: Hopper may never need it. Returns the reason for a failure, or "".
std::string AttentionPlans::open() {
  if (cudnn_ || !reason_.empty()) return reason_;
  try {
    cudnn_ = std::make_unique<Cudnn>(device_.options.deterministic);
    return "";
  } catch (const std::exception& error) {
    return std::string("cuDNN cannot be opened: ") + error.what();
  }
}

bool AttentionPlans::ready(const CudaStream& cuda) {
  if (cudnn_) return true;
  if (reason_.empty() && cuda.capturing()) {
    throw Error(ExitCode::device, "cuDNN cannot be opened inside a captured graph",
                "run a step with this batch shape once before capturing it");
  }
  const std::string why_not = open();
  if (!why_not.empty() && reason_.empty()) refuse(why_not);
  return cudnn_ != nullptr;
}

bool AttentionPlans::forward(CudaStream& cuda, const AttentionForward<bf16>& a) {
  if (!ready(cuda)) return false;
  const Plan& plan = cudnn_->plan(cuda, {false, a.B, a.T, a.NH, a.HS});
  if (!plan.graph) return refuse(plan.refusal);
  const int64_t C = int64_t{a.NH} * a.HS;
  for (int b = 0; b < a.B; b += plan.batch) {
    const int64_t row = int64_t{b} * a.T;
    bf16* qkv = const_cast<bf16*>(a.qkv) + row * 3 * C;
    std::unordered_map<int64_t, void*> tensors = {
        {kQ, qkv}, {kK, qkv + C}, {kV, qkv + 2 * C}, {kOut, a.out + row * C}, {kStats, a.stats + row * a.NH}};
    cudnn_->execute(cuda, plan, tensors);
  }
  return true;
}

bool AttentionPlans::backward(CudaStream& cuda, const AttentionBackward<bf16>& a) {
  if (!ready(cuda)) return false;
  const Plan& plan = cudnn_->plan(cuda, {true, a.B, a.T, a.NH, a.HS});
  if (!plan.graph) return refuse(plan.refusal);
  const int64_t C = int64_t{a.NH} * a.HS;
  for (int b = 0; b < a.B; b += plan.batch) {
    const int64_t row = int64_t{b} * a.T;
    bf16* qkv = const_cast<bf16*>(a.qkv) + row * 3 * C;
    bf16* dqkv = a.dqkv + row * 3 * C;
    std::unordered_map<int64_t, void*> tensors = {{kQ, qkv},
                                                  {kK, qkv + C},
                                                  {kV, qkv + 2 * C},
                                                  {kOut, const_cast<bf16*>(a.out) + row * C},
                                                  {kDout, const_cast<bf16*>(a.dout) + row * C},
                                                  {kStats, const_cast<float*>(a.stats) + row * a.NH},
                                                  {kDq, dqkv},
                                                  {kDk, dqkv + C},
                                                  {kDv, dqkv + 2 * C}};
    cudnn_->execute(cuda, plan, tensors);
  }
  return true;
}

// Logs each reason once. With --attention cudnn it is an error.
bool AttentionPlans::refuse(const std::string& reason) {
  if (device_.options.attention == AttentionKind::cudnn) {
    throw Error(ExitCode::device, reason,
                "install cuDNN 9 and put its lib directory on LD_LIBRARY_PATH, or choose --attention auto");
  }
  if (logged_.insert(reason).second) log_warn("attention: " + reason + "; using our own kernels");
  reason_ = reason;
  return false;
}

std::string AttentionPlans::version() {
  open();
  if (!cudnn_) return "";
  const size_t version = fe::detail::get_backend_version(); // 91900
  return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

} // namespace gpt2

#else // built without cuDNN's headers

namespace gpt2 {

struct AttentionPlans::Cudnn {};

AttentionPlans::AttentionPlans(const CudaDevice& device) : device_(device) {
  reason_ = "built without cuDNN";
  if (device_.options.attention == AttentionKind::cudnn) {
    throw Error(ExitCode::usage, "this program was built without cuDNN", "choose --attention auto, or rebuild with it");
  }
}
bool AttentionPlans::forward(CudaStream&, const AttentionForward<bf16>&) { return false; }
bool AttentionPlans::backward(CudaStream&, const AttentionBackward<bf16>&) { return false; }
bool AttentionPlans::ready(const CudaStream&) { return false; }
std::string AttentionPlans::open() { return reason_; }
bool AttentionPlans::refuse(const std::string&) { return false; }
std::string AttentionPlans::version() { return ""; }

} // namespace gpt2

#endif

namespace gpt2 {
AttentionPlans::~AttentionPlans() = default;
}
