// The Model on a GPU. gpt2_cuda.cu holds the architecture (forward, head, backward), gpt2_cuda_fp8.cu its blocks and
// head with FP8 products; gpt2_cuda_ops.cu and gpt2_cuda_fp8_ops.cu the operations they are made of; gpt2_cuda_step.cu
// what stands around it: tokens up, graph, optimizer, results down; gpt2_cuda_state.cu the initial weights and
// checkpoints.
#pragma once

#include <cuda_bf16.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/cuda_buffers.h"
#include "engine/cuda/gpt2_cuda.h"
#include "engine/cuda/gpt2_cuda_layers.h"
#include "engine/cuda/nvml.h"
#include "engine/model/model_state.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/memory.h"

namespace gpt2 {

class GPT2Cuda final : public Model {
 public:
  GPT2Cuda(const ModelOptions& options, const CudaModelOptions& cuda_options);
  ~GPT2Cuda() override;

  const GPT2Config& config() const override { return config_; }
  const ParameterTable& parameters() const override { return table_; }
  std::string precision_label() const override { return fp8() ? "FP8" : "BF16"; }
  std::string device_name() const override { return device_name_; }

  void micro_step(const Batch& batch, int index, int count) override;
  void update(const UpdateSettings& settings) override;
  StepResult step_result() override;
  void evaluate(const Batch& batch, std::span<LossSum> rows) override;
  void next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) override;
  std::unique_ptr<StateSnapshot> snapshot() override;
  void load_state(StateReader& reader) override;
  void load_weights(StateReader& reader) override;
  NamedTensor read_tensor(const ParameterTensor& tensor, TensorKind kind) override;
  std::vector<Fp8TensorStats> fp8_stats() override;
  void leave_in_bf16(int layer) override;
  std::vector<MemoryLine> memory_report() const override { return memory_report_; }
  std::vector<DeviceMetric> device_metrics() override { return nvml_.metrics(); }

  Cuda& backend() { return cuda_; } // for the benchmark's profile

 private:
  // The architecture: gpt2_cuda.cu.
  void forward(int B, int T);
  void enter_block(int layer, int64_t R);
  void block_forward(int layer, int B, int T);
  void head(int64_t R, StepScalars* scalars, bool backward);
  void backward(int B, int T);
  void block_backward(int layer, int B, int T);
  void recompute(int layer, int B, int T);

  // What of it differs in FP8: gpt2_cuda_fp8.cu.
  void block_forward_fp8(int layer, int B, int T);
  void head_fp8(int64_t R, StepScalars* scalars, bool backward);
  void block_backward_fp8(int layer, int B, int T);
  void hand_down(int layer, int64_t R);
  void recompute_fp8(int layer, int B, int T);
  void quantize_weights();
  void calibrate(int B, int T);
  bool fp8() const { return recipe_ != nullptr; }
  bool fp8_block(int layer) const { return fp8() && layer >= 0 && recipe_->quantized_block(layer); }

  // Its layers, and its operations: gpt2_cuda_ops.cu. Outputs, inputs, layer, rows, in this order. Gradients of
  // parameters are added to; those of biases are column sums that a kernel takes of what it writes anyway.
  LinearLayer linear_layer(int layer, Fp8Site site) const;
  LinearLayer lm_head_layer() const { return linear_layer(0, Fp8Site::lm_head); }
  BlockLayers block_layers(int layer) const;
  LayerNormLayer final_layernorm_layer(int64_t row = 0) const; // of the rows from `row` on
  bf16* weight(int64_t offset) const { return b_.weights + offset; }
  float* grad(int64_t offset) const { return b_.grad + offset; }
  const bf16* bias(const LinearLayer& layer) const; // null where there is none

  // Forward is LayerNormForward<bf16> or LayerNormForwardFp8: the same fields but for the output.
  template <class Forward, class Out>
  Forward layernorm_arguments(Out out, const LayerNormLayer& norm, int64_t R) const {
    return {.out = out,
            .residual_out = norm.x,
            .mean = norm.mean,
            .rstd = norm.rstd,
            .residual_in = norm.x_before,
            .branch = norm.branch,
            .weight = weight(norm.weight),
            .bias = weight(norm.bias),
            .rows = R,
            .C = config_.channels};
  }

  void embed(int B, int T);
  void embed_gradient(int B, int T);
  void linear(bf16* out, const bf16* in, const LinearLayer& layer, int64_t R);
  void linear_gelu(bf16* out, bf16* pre, const bf16* in, const LinearLayer& layer, int64_t R);
  void linear_input_gradient(bf16* din, const bf16* dout, const LinearLayer& layer, int64_t R);
  void linear_weight_gradient(const bf16* dout, const bf16* in, const LinearLayer& layer, int64_t R);
  void linear_bias_gradient(const bf16* dout, const LinearLayer& layer, int64_t R);
  void layernorm(bf16* out, const LayerNormLayer& norm, int64_t R);
  // dx += gradient through the LayerNorm; the final one, where backward begins, writes dx.
  void layernorm_gradient(bf16* dx, const bf16* dout, const LayerNormLayer& norm, int64_t R);
  void attention(const BlockActivations& a, int B, int T); // a.o from a.qkv
  void attention_gradient(bf16* dqkv, const bf16* dout, const BlockActivations& a, int B, int T);
  void gelu(bf16* out, const bf16* in, int64_t R);
  void gelu_gradient(bf16* gradient, const bf16* pre, const LinearLayer& fc, int64_t R); // in place
  void chunk_losses(int64_t row, int64_t rows, bool write_gradient); // of b_.logits, rows from `row` on
  void sum_losses(StepScalars* scalars, int64_t R);

  // The operations in FP8: gpt2_cuda_fp8_ops.cu. The layer is the product that reads the codes, or, for a gradient,
  // the one whose output it belongs to. `again`: made a second time and metered only once.
  void linear_fp8(bf16* out, const uint8_t* in, const LinearLayer& layer, int64_t R);
  void linear_input_gradient_fp8(bf16* din, const uint8_t* dout, const LinearLayer& layer, int64_t R);
  void linear_weight_gradient_fp8(const uint8_t* dout_t, const uint8_t* in_t, const LinearLayer& layer, int64_t R);
  void quantize(uint8_t* out, const bf16* in, const LinearLayer& layer, int64_t R);
  void quantize_again(uint8_t* out_t, const bf16* in, const LinearLayer& layer, int64_t R);
  void quantize_gradient(Fp8Codes out, float* dbias, const bf16* dout, const LinearLayer& layer, int64_t R);
  void quantize_weight(const LinearLayer& layer);
  void layernorm_fp8(uint8_t* out, const LayerNormLayer& norm, int64_t R);
  void final_layernorm_fp8(int64_t row, int64_t rows, bool backward);
  // dx as in layernorm_gradient, and its codes where the projection that it goes to is in FP8; the LayerNorm's output
  // again in out_t, unless that is null.
  void layernorm_gradient_fp8(Fp8Codes gradient, uint8_t* out_t, const bf16* dout, const LayerNormLayer& norm,
                              int64_t R);
  void gelu_fp8(uint8_t* out, const bf16* in, const LinearLayer& fcproj, int64_t R);
  void gelu_gradient_fp8(Fp8Codes gradient, uint8_t* out_t, const bf16* dout, const bf16* pre, const BlockLayers& block,
                         int64_t R);
  void chunk_losses_fp8(Fp8Codes dlogits, int64_t row, int64_t rows);

  int fp8_id(const LinearLayer& layer, Fp8Role role) const;
  int activation_for_weight_gradient(const LinearLayer& layer) const;
  Fp8Sink sink(int id, Fp8Codes codes) const;
  Fp8Sink made_again(const LinearLayer& layer, uint8_t* transposed) const;
  Fp8Tensor tensor(int id, const uint8_t* data) const;
  void layernorm_into(Fp8Sink out, const LayerNormLayer& norm, int64_t R);
  template <class Pass>
  void produce(int id, Pass&& pass);

  // Around it.
  void forward_and_head(int B, int T, StepScalars* scalars, bool backward);
  void forward_backward(int B, int T);
  void begin_step(int B, int T);
  void prepare_evaluation();
  void finish_evaluation();
  void upload(const Batch& batch);
  void initialize_on_device();
  void initialize_recipe();
  void upload_state(FlatSnapshot& state);
  void upload_formats();  // which tensors the device rescales, and to which format's range
  void upload_recipe();   // scales and histories to the device
  void download_recipe(); // and back
  int64_t values_per_step(int id) const;
  void refresh_weights(); // BF16 copies from the master weights
  void check(const Batch& batch) const;

  struct TokenSlot {        // a micro-batch on its way up
    Pinned<int32_t> tokens; // inputs, then targets
    Event copied;
  };
  struct StepOutcome { // comes back once a step
    StepScalars scalars;
    GuardState guard;
  };

  const GPT2Config config_;
  const ModelOptions options_;
  const ParameterTable table_;
  const GPT2Offsets at_;
  const Recompute recompute_;
  const bool use_graph_;
  const bool fuse_gelu_;
  Cuda cuda_;
  std::string device_name_;
  std::unique_ptr<DeviceMemory> memory_;
  CudaBuffers b_;
  std::vector<MemoryLine> memory_report_;

  std::vector<TokenSlot> slots_;
  size_t next_slot_ = 0;
  Pinned<StepOutcome> outcome_{1};
  Event outcome_ready_;

  Graph micro_step_graph_;            // for the training shape
  int warm_batch_ = 0, warm_seq_ = 0; // shape whose plans are made; captured at its second micro-step
  Nvml nvml_;

  std::unique_ptr<Fp8RecipeState> recipe_; // null: BF16. Formats, names and choice of blocks; scales live on the device
  bool current_scaling_ = false;           // producers run twice: once for the amax, once for the codes
  bool silent_ = false;                    // evaluation and recomputation leave no trace in the meters
  int64_t step_tokens_ = 0;                // positions of the last step's micro-batches, ignored targets included
  bool weights_stale_ = true;              // FP8 copies are older than the master weights
};

} // namespace gpt2
