// GPT-2, forward and backward, one statement per operation.
#include <algorithm>

#include "engine/cpu/gpt2_cpu.h"
#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/gemm.h"
#include "kernels/layernorm.h"
#include "kernels/layernorm_backward.h"

namespace gpt2 {

// Several arguments per line: an operation stays a few lines.
// clang-format off

void GPT2Cpu::find_documents(const Batch& batch) {
  if (!options_.documents.mask) return;
  const size_t rows = batch.inputs.size();
  for (auto* values : {&document_begin_, &document_end_, &document_positions_}) values->resize(rows);
  gpt2::find_documents(cpu_, {.begin = document_begin_.data(), .end = document_end_.data(),
                              .positions = document_positions_.data(), .tokens = batch.inputs.data(),
                              .B = batch.batch_size, .T = batch.seq_len,
                              .separator = options_.documents.separator});
  documents_ = {document_begin_.data(), document_end_.data()};
}

void GPT2Cpu::embed(const Batch& batch) {
  const float* w = params_.data();
  embedding_forward(cpu_, {.out = activations_.blocks[0].x, .tokens = batch.inputs.data(), .wte = w + at_.wte,
                           .wpe = w + at_.wpe, .B = batch.batch_size, .T = batch.seq_len, .C = config_.channels,
                           .positions = positions()});
}

void GPT2Cpu::attend(int layer, const Batch& batch) {
  const CpuBlockActivations& a = activations_.blocks[layer];
  attention_forward(cpu_, {.out = a.attention, .stats = a.attention_stats, .qkv = a.qkv,
                           .B = batch.batch_size, .T = batch.seq_len, .NH = config_.heads, .HS = config_.head_dim(),
                           .documents = documents_});
}

void GPT2Cpu::forward(const Batch& batch) {
  embed(batch);
  forward_blocks(batch.tokens(), [&](int layer) { attend(layer, batch); });
}

void GPT2Cpu::forward_blocks(int64_t rows, const Attend& attend) {
  const float* w = params_.data();
  const CpuActivations& a = activations_;

  for (int layer = 0; layer < config_.layers; ++layer) block_forward(layer, rows, attend);
  layernorm_forward(cpu_, {.out = a.h, .residual_out = a.last, .mean = a.lnf_mean, .rstd = a.lnf_rstd,
                           .residual_in = a.blocks.back().middle, .branch = a.branch,
                           .weight = w + at_.lnf_weight, .bias = w + at_.lnf_bias, .rows = rows,
                           .C = config_.channels});
}

// middle = x + attention(LN(x)); middle + mlp(LN(middle)) is left as (middle, branch) for the next LayerNorm to add.
void GPT2Cpu::block_forward(int layer, int64_t rows, const Attend& attend) {
  const int C = config_.channels;
  const float* w = params_.data();
  const BlockOffsets& at = at_.blocks[layer];
  const CpuActivations& all = activations_;
  const CpuBlockActivations& a = all.blocks[layer];
  const float* residual_in = layer == 0 ? a.x : all.blocks[layer - 1].middle; // the first block's x is the embedding
  const float* branch_in = layer == 0 ? nullptr : all.branch;

  layernorm_forward(cpu_, {.out = a.h1, .residual_out = a.x, .mean = a.ln1_mean, .rstd = a.ln1_rstd,
                           .residual_in = residual_in, .branch = branch_in,
                           .weight = w + at.ln1_weight, .bias = w + at.ln1_bias, .rows = rows, .C = C});
  linears_.forward(linear(layer, Fp8Site::qkv), {.out = a.qkv, .in = a.h1, .kept = a.h1, .rows = rows});
  attend(layer);
  linears_.forward(linear(layer, Fp8Site::proj), {.out = all.branch, .in = a.attention, .kept = a.attention_kept,
                                                  .rows = rows});
  layernorm_forward(cpu_, {.out = a.h2, .residual_out = a.middle, .mean = a.ln2_mean, .rstd = a.ln2_rstd,
                           .residual_in = a.x, .branch = all.branch,
                           .weight = w + at.ln2_weight, .bias = w + at.ln2_bias, .rows = rows, .C = C});
  linears_.forward(linear(layer, Fp8Site::fc), {.out = a.pre, .in = a.h2, .kept = a.h2, .rows = rows});
  gelu_forward(cpu_, {.out = a.gelu, .in = a.pre, .rows = rows, .cols = 4 * C});
  linears_.forward(linear(layer, Fp8Site::fcproj), {.out = all.branch, .in = a.gelu, .kept = a.gelu, .rows = rows});
}

// Logits, losses and gradients one chunk of rows at a time: the full logits never exist.
void GPT2Cpu::head(const Batch& batch, bool train) {
  const int64_t rows = batch.tokens(), C = config_.channels;
  const CpuActivations& a = activations_;
  const LinearLayer lm_head = linear(config_.layers, Fp8Site::lm_head);

  const float* h = linears_.quantize_input(lm_head, a.h, a.h, rows);
  for (int64_t row = 0; row < rows; row += CpuActivations::kHeadChunk) {
    const int64_t chunk = std::min(CpuActivations::kHeadChunk, rows - row);
    linears_.multiply(lm_head, a.logits, h + row * C, chunk);
    cross_entropy(cpu_, {.logits = a.logits, .losses = a.losses + row, .targets = batch.targets.data() + row,
                         .rows = chunk, .vocab = config_.vocab, .padded_vocab = config_.padded_vocab,
                         .write_gradient = train});
    if (!train) continue;
    linears_.backward(lm_head, {.din = a.dnarrow + row * C, .dout = a.logits, .quantized = a.logits,
                                .kept = a.h + row * C, .rows = chunk,
                                .targets = batch.targets.data() + row, .first_row = first_token_ + row});
  }
}

void GPT2Cpu::backward(const Batch& batch) {
  const int B = batch.batch_size, T = batch.seq_len, C = config_.channels;
  const float* w = params_.data();
  float* d = grads_.data();
  const CpuActivations& a = activations_;

  layernorm_backward(cpu_, {.dresidual = a.dresidual, .dweight = d + at_.lnf_weight, .dbias = d + at_.lnf_bias,
                            .dbranch_bias = d + at_.blocks.back().fcproj_bias, .dout = a.dnarrow, .x = a.last,
                            .weight = w + at_.lnf_weight, .mean = a.lnf_mean, .rstd = a.lnf_rstd,
                            .rows = batch.tokens(), .C = C, .accumulate = false});
  for (int layer = config_.layers - 1; layer >= 0; --layer) block_backward(layer, B, T);
  embedding_backward(cpu_, {.dwte = d + at_.wte, .dwpe = d + at_.wpe, .dout = a.dresidual,
                            .tokens = batch.inputs.data(), .B = B, .T = T, .C = C, .vocab = config_.vocab,
                            .positions = positions()});
}

// In: dresidual, the gradient of the block's output; out: that of its input. A LayerNorm's backward completes the
// gradient of the branch added just before it, so it also computes the bias gradient of that branch's GEMM.
void GPT2Cpu::block_backward(int layer, int B, int T) {
  const int C = config_.channels, NH = config_.heads, HS = config_.head_dim();
  const int64_t rows = int64_t{B} * T;
  const float* w = params_.data();
  float* d = grads_.data();
  const BlockOffsets& at = at_.blocks[layer];
  const CpuActivations& all = activations_;
  const CpuBlockActivations& a = all.blocks[layer];
  float* previous_branch_bias = layer == 0 ? nullptr : d + at_.blocks[layer - 1].fcproj_bias;

  linears_.backward(linear(layer, Fp8Site::fcproj), {.din = all.dwide, .dout = all.dresidual,
                                                     .quantized = all.quantized, .kept = a.gelu, .rows = rows});
  gelu_backward(cpu_, {.din = all.dwide, .dbias = d + at.fc_bias, .dout = all.dwide, .in = a.pre,
                       .rows = rows, .cols = 4 * C});
  linears_.backward(linear(layer, Fp8Site::fc), {.din = all.dnarrow, .dout = all.dwide, .quantized = all.dwide,
                                                 .kept = a.h2, .rows = rows});
  layernorm_backward(cpu_, {.dresidual = all.dresidual, .dweight = d + at.ln2_weight, .dbias = d + at.ln2_bias,
                            .dbranch_bias = d + at.proj_bias, .dout = all.dnarrow, .x = a.middle,
                            .weight = w + at.ln2_weight, .mean = a.ln2_mean, .rstd = a.ln2_rstd,
                            .rows = rows, .C = C, .accumulate = true});
  linears_.backward(linear(layer, Fp8Site::proj), {.din = all.dnarrow, .dout = all.dresidual,
                                                   .quantized = all.quantized, .kept = a.attention_kept, .rows = rows});
  attention_backward(cpu_, {.dqkv = all.dwide, .dout = all.dnarrow, .out = a.attention, .qkv = a.qkv,
                            .stats = a.attention_stats, .B = B, .T = T, .NH = NH, .HS = HS,
                            .documents = documents_});
  bias_backward(cpu_, {.dbias = d + at.qkv_bias, .dout = all.dwide, .rows = rows, .cols = 3 * C});
  linears_.backward(linear(layer, Fp8Site::qkv), {.din = all.dnarrow, .dout = all.dwide, .quantized = all.dwide,
                                                  .kept = a.h1, .rows = rows});
  layernorm_backward(cpu_, {.dresidual = all.dresidual, .dweight = d + at.ln1_weight, .dbias = d + at.ln1_bias,
                            .dbranch_bias = previous_branch_bias, .dout = all.dnarrow, .x = a.x,
                            .weight = w + at.ln1_weight, .mean = a.ln1_mean, .rstd = a.ln1_rstd,
                            .rows = rows, .C = C, .accumulate = true});
}

// clang-format on

} // namespace gpt2
