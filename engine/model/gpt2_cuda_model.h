// The Model on a GPU. gpt2_cuda.cu holds the architecture (forward, head, backward), gpt2_cuda_fp8.cu the same with FP8
// products, gpt2_cuda_step.cu what stands around it: tokens up, graph, optimizer, results down; gpt2_cuda_state.cu the
// initial weights and checkpoints.
#pragma once

#include <cuda_bf16.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/model/cuda_buffers.h"
#include "engine/model/cuda_memory.h"
#include "engine/model/gpt2_cuda.h"
#include "engine/model/nvml.h"
#include "kernels/cuda_backend.h"

namespace gpt2 {

class GPT2Cuda final : public Model {
 public:
  GPT2Cuda(const ModelOptions& options, const CudaModelOptions& cuda_options);
  ~GPT2Cuda() override;

  const GPT2Config& config() const override { return config_; }
  const ParameterTable& parameters() const override { return table_; }
  Precision precision() const override { return options_.precision; }
  std::string precision_label() const override { return fp8() ? "FP8" : "BF16"; }
  std::string device_name() const override { return device_name_; }

  void micro_step(const Batch& batch, int index, int count) override;
  void update(const UpdateSettings& settings) override;
  StepResult step_result() override;
  LossSum evaluate(const Batch& batch) override;
  void next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) override;
  void save_state(StateWriter& writer) override;
  void load_state(StateReader& reader) override;
  NamedTensor read_tensor(const ParameterTensor& tensor, TensorKind kind) override;
  std::vector<Fp8TensorStats> fp8_stats() override;
  void leave_in_bf16(int layer) override;
  std::vector<MemoryLine> memory_report() const override { return memory_report_; }
  std::vector<DeviceMetric> device_metrics() override { return nvml_.metrics(); }

  Cuda& backend() { return cuda_; } // for the benchmark's profile

 private:
  // The architecture.
  void forward(int B, int T);
  void enter_block(int layer, int64_t R);
  void block_forward(int layer, int B, int T);
  void head(int64_t R, StepScalars* scalars, bool backward);
  void backward(int B, int T);
  void block_backward(int layer, int B, int T);
  void recompute(int layer, int B, int T);

  // The same in FP8.
  void forward_fp8(int B, int T);
  void enter_block_fp8(int layer, int64_t R);
  void block_forward_fp8(int layer, int B, int T);
  void head_fp8(int64_t R, StepScalars* scalars, bool backward);
  void final_layernorm(int64_t R); // BF16, into h_final
  void backward_fp8(int B, int T);
  void block_backward_fp8(int layer, int B, int T);
  void recompute_fp8(int layer, int B, int T);
  void hand_down(int layer, int64_t R);
  void quantise_weights();
  void calibrate(int B, int T);

  bool fp8() const { return recipe_ != nullptr; }
  bool fp8_block(int layer) const { return layer >= 0 && recipe_->quantised_block(layer); }
  template <class Pass>
  void produce(int id, Pass&& pass);
  Fp8Sink sink(int id, uint8_t* data, uint8_t* transposed) const;
  Fp8Sink made_again(int layer, Fp8Site site, uint8_t* transposed) const;
  Fp8Tensor codes(int id, const uint8_t* data) const;
  int activation_for_wgrad(int layer, Fp8Site site) const;

  bf16* weight(int64_t offset) const { return b_.weights + offset; }
  float* grad(int64_t offset) const { return b_.grad + offset; }

  // Around it.
  void forward_and_head(int B, int T, StepScalars* scalars, bool backward);
  void forward_backward(int B, int T);
  void begin_step(int B, int T);
  void prepare_evaluation();
  void finish_evaluation();
  void upload(const Batch& batch);
  void initialize_on_device();
  void initialize_recipe();
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
