// The Model on a GPU.
//
//   gpt2_cuda.cu         the architecture: forward, head, backward
//   gpt2_cuda_fp8.cu     blocks and head with FP8 GEMMs
//   gpt2_cuda_step.cu    token upload, CUDA graph, optimizer, results
//   gpt2_cuda_state.cu   initial weights, checkpoints
//   gpt2_cuda_decode.cu  DecoderCuda: decoding with a KV cache
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/cuda_buffers.h"
#include "engine/cuda/cuda_ranks.h"
#include "engine/cuda/gpt2_cuda.h"
#include "engine/cuda/key_value_cache_cuda.h"
#include "engine/cuda/layers_cuda.h"
#include "engine/cuda/layers_cuda_fp8.h"
#include "engine/cuda/muon_cuda.h"
#include "engine/cuda/nvml.h"
#include "engine/cuda/state_copier.h"
#include "engine/model/model_state.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/timeline.h"

namespace gpt2 {

class GPT2Cuda final : public Model {
 public:
  GPT2Cuda(const ModelOptions& options, const CudaModelOptions& cuda_options, RankGroup& group);
  ~GPT2Cuda() override;

  void micro_step(const Batch& batch, int index, int count) override;
  void update(const UpdateSettings& settings) override;
  StepResult step_result() override;
  void leave_in_bf16(int layer) override;

  void evaluate(const Batch& batch, std::span<LossSum> rows) override;
  void next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) override;
  std::unique_ptr<Decoder> make_decoder(int rows, int positions) override;

  std::unique_ptr<StateSnapshot> snapshot() override;
  void load_state(StateReader& reader) override;
  void load_weights(StateReader& reader) override;

  const GPT2Config& config() const override { return config_; }
  const ParameterTable& parameters() const override { return table_; }
  std::string precision_label() const override { return fp8_ ? "FP8" : "BF16"; }
  bool before_fp8() const override { return fp8_ && fp8_->scaler.recipe().inactive(); }
  std::string step_label() const override { return before_fp8() ? "BF16" : precision_label(); }
  std::string device_name() const override { return cuda_.device->name; }
  NamedTensor read_tensor(const ParameterTensor& tensor, TensorKind kind) override;
  std::vector<Fp8TensorStats> fp8_stats() override;
  std::vector<MemoryLine> memory_report() const override { return memory_report_; }
  std::vector<DeviceMetric> device_metrics() override { return nvml_.metrics(); }

  CudaStream& backend() { return cuda_; } // for benchmarks

 private:
  friend class DecoderCuda; // its own passes over this model's weights and activations

  // The collectives of a pass; part of the captured graph.
  enum class Exchange {
    none,
    await_weights,    // a micro-step: each block waits for its gathered weights
    reduce_gradients, // the last micro-step: the same, and each block's gradients are reduced
  };

  // The architecture: gpt2_cuda.cu.
  void forward(int B, int T, Fp8Pass pass, Exchange exchange);
  void enter_block(int layer, int64_t R, Fp8Pass pass);
  void block_forward(int layer, int B, int T);
  void head(int64_t R, bool backward);
  void backward(int B, int T, Fp8Pass pass, Exchange exchange);
  void block_backward(int layer, int B, int T);
  void recompute(int layer, int B, int T);
  bool fuses_gelu() const;

  // With FP8 GEMMs: gpt2_cuda_fp8.cu.
  void block_forward_fp8(int layer, int B, int T, Fp8Pass pass);
  void head_fp8(int64_t R, bool backward, Fp8Pass pass);
  void block_backward_fp8(int layer, int B, int T, Fp8Pass pass);
  void quantize_dx_for_block_below(int layer, int64_t R, Fp8Pass pass);
  void quantize_weights(Fp8Pass pass);
  void calibrate(int B, int T);
  void run_calibration_gemms(int64_t R);
  bool gathers_fp8_weights() const; // ranks all-gather updated blocks in E4M3 instead of BF16
  void quantize_owned(int layer, const OwnedSlice& slice);
  void receive_block(int layer);
  void receive_lm_head();
  bool fp8_block(int layer) const { return fp8_ && fp8_->scaler.quantizes(layer); }
  bool fp8_head() const { return fp8_ && fp8_->scaler.recipe().quantized_head(); }

  void append_to_cache(int layer, const KeyValueCacheCuda& cache, const TokenSlots& slots); // gpt2_cuda_decode.cu

  LinearLayer linear_layer(int layer, Fp8Site site) const;
  LinearLayer lm_head_layer() const { return linear_layer(0, Fp8Site::lm_head); }
  BlockLayers block_layers(int layer) const;
  LayerNormLayer final_layernorm_layer(int64_t row = 0) const; // for the rows from `row`

  // gpt2_cuda_step.cu, gpt2_cuda_state.cu.
  void upload(const Batch& batch, int64_t first_token = 0); // first_token: position in the step, over all ranks
  void begin_step(int B, int T);
  void find_documents(int B, int T, int32_t separator);
  void forward_and_losses(int B, int T, bool backward, Fp8Pass pass, Exchange exchange);
  void forward_backward(int B, int T, Fp8Pass pass, Exchange exchange);
  void tune(RankGroup& group);
  void run_all_gemms(int B, int T);
  void adamw_everything(const AdamWSettings& settings);
  void gather_weights();
  void gather_update();
  void record_timeline();
  void prepare_inference();
  void initialize_on_device();
  void master_to_weights();
  std::unique_ptr<FlatSnapshot> copy_of_tensors();
  void upload_state(FlatSnapshot& state);
  void invalidate_graphs();
  bool trains() const { return options_.purpose == Purpose::training; }

  struct TokenSlot {        // staging memory of one micro-batch
    Pinned<int32_t> tokens; // inputs, then targets
    Pinned<int64_t> first_token;
    Event copied;
  };
  struct StepOutcome { // downloaded once per step
    StepScalars scalars;
    GuardState guard;
    int64_t fp8_applied_steps; // FP8 only
  };
  struct Fp8 {
    Fp8(const LayerContext& at, const Fp8Options& options, CudaRanks* ranks)
        : scaler(at.cuda, at.b.fp8.scales, options, at.config.layers, ranks),
          layers{{at, scaler}, {at, scaler}, {at, scaler}} {}
    Fp8Scaler scaler;
    struct {
      LinearsFp8 linears;
      LayerNormsFp8 norms;
      LossesFp8 losses;
    } layers;

    // The FP8 weights against the BF16 weights and the scales.
    enum class Weights {
      stale,   // they do not match: after update(), calibrate() and upload_state()
      whole,   // quantized whole on every rank, by begin_step() or prepare_inference()
      sharded, // quantized in shards, one per rank, by gather_update(): a weight's counts cover one shard
    };
    Weights weights = Weights::stale;
    bool stats_weights_sharded = false;  // in the step that fp8_stats() reports, set by update()
    bool captured_current_steps = false; // the captured micro-steps use current scaling for all tensors
  };

  const GPT2Config config_;
  const ModelOptions options_;
  const ParameterTable table_;
  const GPT2Offsets at_;
  const std::vector<OwnedSlice> owned_;   // one per bucket; a single rank: everything
  const bool sharded_;                    // optimizer state for owned_ alone
  const std::vector<OwnedSlice> updated_; // sharded: owned_; otherwise everything
  const std::vector<OwnedSlice> adamw_;   // the parts of updated_ that AdamW updates; `at`: in adam_v
  const Recompute recompute_;
  const bool fuse_gelu_;
  const bool use_graph_;
  CudaStream cuda_;
  std::unique_ptr<DeviceMemory> memory_;
  std::vector<MemoryLine> memory_report_;
  const CudaBuffers b_;

  const LayerContext context_;
  const Linears linears_;
  const LayerNorms norms_;
  const Attention attention_;
  const Embedding embedding_;
  const Losses losses_;
  std::unique_ptr<CudaRanks> ranks_;    // null: one process
  std::unique_ptr<Fp8> fp8_;            // null: BF16
  std::unique_ptr<MuonCuda> muon_;      // null: AdamW alone
  std::unique_ptr<StateCopier> copier_; // null: inference
  const int rank_, rank_count_;

  struct PrefillCache {
    const KeyValueCacheCuda& cache;
    TokenSlots slots;
  };
  std::optional<PrefillCache> prefill_cache_; // while a prompt is read: where block_forward() stores keys and values

  std::vector<TokenSlot> slots_;
  size_t next_slot_ = 0;
  Pinned<StepOutcome> outcome_{1};
  Event outcome_ready_;
  int micro_steps_ = 0;        // of the last step
  int64_t timeline_steps_ = 0; // since the process started, without --fp8_bf16_steps
  const std::string timeline_path_;
  std::unique_ptr<Timeline> timeline_; // null: not recording
  int64_t step_tokens_ = 0;            // of the last step's micro-batches, ignored targets included

  Graph micro_step_graphs_[2];        // await_weights, reduce_gradients; one process uses the first alone
  int warm_batch_ = 0, warm_seq_ = 0; // shape whose GEMM plans exist; captured at its second micro-step
  Nvml nvml_;
};

} // namespace gpt2
