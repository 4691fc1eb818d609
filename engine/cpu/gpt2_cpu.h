// GPT-2 on the CPU in FP32 or emulated FP8: the readable reference against which tests check the GPU engine.
//
//   gpt2_cpu_passes.cpp  the architecture: forward and backward
//   gpt2_cpu_decode.cpp  decoding with a KV cache
//   gpt2_cpu.cpp         steps, optimizer, calibration, state
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/stopwatch.h"
#include "engine/cpu/gpt2_cpu_buffers.h"
#include "engine/cpu/linear_cpu.h"
#include "engine/cpu/muon_cpu.h"
#include "engine/model/model_state.h"
#include "engine/ranks/communicator.h"
#include "kernels/documents.h"
#include "kernels/optimizer.h"

namespace gpt2 {

// The model of one rank of `communicator`.
std::unique_ptr<Model> make_cpu_model(const ModelOptions& options,
                                      std::unique_ptr<Communicator> communicator = make_single_communicator(),
                                      const SharingOptions& sharing = {});

// Bytes per rank by purpose, computed without allocating.
std::vector<MemoryLine> cpu_model_memory(const ModelOptions& options, int ranks, const SharingOptions& sharing);

class GPT2Cpu final : public Model {
 public:
  GPT2Cpu(const ModelOptions& options, std::unique_ptr<Communicator> communicator, const SharingOptions& sharing);

  const GPT2Config& config() const override { return config_; }
  const ParameterTable& parameters() const override { return table_; }
  std::string precision_label() const override { return recipe_ ? "FP8 (emulated)" : "FP32"; }
  bool before_fp8() const override { return recipe_ && recipe_->inactive(); }
  std::string step_label() const override { return before_fp8() ? "FP32" : precision_label(); }
  std::string device_name() const override;

  void micro_step(const Batch& batch, int index, int count) override;
  void update(const UpdateSettings& settings) override;
  StepResult step_result() override { return step_result_of(scalars_, guard_, own_seconds_); }
  void evaluate(const Batch& batch, std::span<LossSum> rows) override;
  void next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) override;
  std::unique_ptr<Decoder> make_decoder(int rows, int positions) override;
  std::unique_ptr<StateSnapshot> snapshot() override;
  void load_state(StateReader& reader) override;
  void load_weights(StateReader& reader) override;
  NamedTensor read_tensor(const ParameterTensor& tensor, TensorKind kind) override;
  std::vector<Fp8TensorStats> fp8_stats() override {
    return recipe_ ? recipe_->stats() : std::vector<Fp8TensorStats>();
  }
  void leave_in_bf16(int layer) override;
  std::vector<MemoryLine> memory_report() const override {
    return cpu_model_memory(options_, communicator_->ranks(), sharing_);
  }

  // For decoders. logits: (vocab), (tokens, vocab).
  void prefill(const KeyValueCacheCpu& cache, int row, std::span<const int32_t> tokens, std::span<float> logits);
  void decode(const KeyValueCacheCpu& cache, std::span<const int32_t> tokens, const TokenSlots& slots,
              std::span<float> logits);

 private:
  using Attend = std::function<void(int layer)>; // the block's qkv -> its attention output

  // The architecture.
  void forward(const Batch& batch);        // tokens -> activations_.h
  void find_documents(const Batch& batch); // of training and evaluation; generated text is one document
  const int32_t* positions() const {       // null: 0, 1, 2, ... in every sequence
    return documents_ && options_.documents.positions == DocumentPositions::restart ? document_positions_.data()
                                                                                    : nullptr;
  }
  void embed(const Batch& batch); // tokens -> the first block's x
  void attend(int layer, const Batch& batch);
  void forward_blocks(int64_t rows, const Attend& attend); // the first block's x -> activations_.h
  void head(const Batch& batch, bool train);               // activations_.h -> losses; training: also the gradient of h
  void backward(const Batch& batch);                       // gradient of h -> all gradients
  void block_forward(int layer, int64_t rows, const Attend& attend);
  void block_backward(int layer, int B, int T);
  LinearLayer linear(int layer, Fp8Site site) const { return linear_layer(config_, at_, layer, site); }

  // One whole text: logits after its last token. `keep` runs when a block's qkv is complete.
  void read_text(std::span<const int32_t> tokens, std::span<float> logits, const std::function<void(int layer)>& keep);
  void decode_chunk(const KeyValueCacheCpu& cache, std::span<const int32_t> tokens, const TokenSlots& slots,
                    std::span<float> logits);
  void read_logits(int64_t first, int64_t rows, std::span<float> logits); // of `rows` rows of activations_.h

  // Steps and state.
  void forward_backward(const Batch& batch);
  void begin_step(const Batch& first);
  void begin_inference();
  void quantize_weights();
  void reduce_gradients();
  void adopt_weights(std::span<const float> own);

  const ModelOptions options_;
  const std::unique_ptr<Communicator> communicator_;
  const SharingOptions sharing_;
  const bool sharded_; // moments for owned_ alone
  const GPT2Config config_;
  const ParameterTable table_;
  const GPT2Offsets at_;
  const std::vector<OwnedSlice> owned_;   // one per bucket; a single rank: everything
  const std::vector<OwnedSlice> updated_; // sharded: owned_; otherwise everything
  const std::vector<OwnedSlice> adamw_;   // the parts of updated_ that AdamW updates; `at`: in adam_v_
  Cpu cpu_;

  CpuBuffer params_;                // flat, in the table's layout
  CpuBuffer grads_;                 // the same layout; empty at inference
  CpuBuffer adam_m_, adam_v_;       // compact, of updated_ and of adamw_
  CpuBuffer quantized_weights_;     // flat; empty without FP8
  std::vector<uint8_t> decay_mask_; // one byte per 256 elements
  CpuActivations activations_;
  std::vector<int32_t> document_begin_, document_end_, document_positions_; // (rows); empty without a mask
  DocumentBounds documents_;
  std::optional<Fp8RecipeState> recipe_;        // with FP8
  std::optional<Fp8RecipeState> recipe_before_; // within a step: the recipe before it, for a snapshot
  LinearLayersCpu linears_;
  std::optional<MuonCpu> muon_; // under Muon
  int64_t first_token_ = 0;     // position of the micro-batch in the step, over all ranks: keys stochastic rounding
  double waited_before_ = 0;    // communicator_->waited_seconds() at the start of the step
  double own_seconds_ = 0;      // of the last step, without waiting for other ranks
  Stopwatch step_watch_;
  bool weights_stale_ = true; // quantized_weights_ are older than the weights or their scales

  StepScalars scalars_{};
  GuardState guard_{};
};

} // namespace gpt2
