// Every device buffer of the model, in one allocation whose size is computed first.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/cuda/cuda_options.h"
#include "engine/model/arena.h"
#include "engine/model/model.h"
#include "kernels/backend.h"
#include "kernels/cross_entropy_fp8.h"
#include "kernels/fp8_tensor.h"
#include "kernels/fp8_update.h"
#include "kernels/optimizer.h"

namespace gpt2 {

// Activations of one block saved for backward; R = B*T rows. At inference all blocks share one set.
// BF16: 32 bytes per channel and token, 24 with Recompute::gelu (all blocks share gelu), 2 with Recompute::block (all
// but x are shared). FP8: 20, because the backward kernels recompute LayerNorm's and GELU's outputs, transposed, from
// inputs that they read anyway.
struct BlockActivations {
  bf16* x;              // (R, C) residual stream entering the block
  bf16* h1;             // (R, C) first LayerNorm's output
  bf16* qkv;            // (R, 3C)
  bf16* o;              // (R, C) attention's output
  bf16* x_mid;          // (R, C) residual stream between attention and MLP
  bf16* h2;             // (R, C) second LayerNorm's output
  bf16* pre;            // (R, 4C) before the GELU; in FP8 it may hold GELU's FP8 values and slopes (layers_cuda_fp8.h)
  bf16* gelu;           // (R, 4C)
  float* stats;         // (B, NH, T) logsumexp of the scores
  float *mean1, *rstd1; // (R)
  float *mean2, *rstd2; // (R)
};

// FP8 values. Every block reuses all but the weights; forward and backward buffers share memory.
struct Fp8Buffers {
  uint8_t* weights;   // flat, in the parameter table's layout
  uint8_t* weights_t; // each matrix transposed

  uint8_t* h;    // (R, C) LayerNorm's output
  uint8_t* o;    // (R, C) attention's output
  uint8_t* gelu; // (R, 4C)

  uint8_t *dx, *dx_t;     // (R, C), (C, R) gradient of the residual stream
  uint8_t *wide, *wide_t; // (R, 4C), (4C, R) gradient of the MLP's hidden layer, or of QKV
  uint8_t* gelu_t;        // (4C, R)
  uint8_t* h_t;           // (C, R) LayerNorm's or attention's output

  uint8_t* h_final;             // (R, C)
  uint8_t* h_final_t;           // (C, rows) for each chunk of rows
  uint8_t *dlogits, *dlogits_t; // (chunk, Vp), (Vp, chunk)
  SoftmaxPart* softmax_parts;   // (chunk, parts per row) of the logits; unused without the fused LM head

  Fp8Scales scales;
};

// Muon's matrices of one group, BF16. They share memory with the activations, which are dead during an update.
struct MuonBuffers {
  bf16 *in, *out;    // stacks of matrices: this rank's, all ranks'
  bf16 *gram, *poly; // (side, side) for each of this rank's
  bf16* flat;        // u of all matrices, in the parameter table's layout; null unless sharded
};

struct CudaBuffers {
  // Flat, in the parameter table's layout.
  bf16* weights;       // read by the forward pass
  float* grad;         // of the sum over tokens
  uint8_t* decay_mask; // one byte per 256 elements

  // The same layout, or, with a sharded optimizer, this rank's slices alone.
  float* master;
  float* adam_m;
  float* adam_v; // laid out by second_moment_slices()

  // With a sharded optimizer: FP32 copies of all LayerNorm vectors and GEMM biases, on every rank.
  float* vectors; // null: not sharded, the master has them
  int64_t vectors_count;
  std::unordered_map<int64_t, int64_t> vectors_at; // by the tensor's offset

  const float* vector(int64_t offset) const { return vectors ? vectors + vectors_at.at(offset) : master + offset; }

  std::vector<BlockActivations> blocks;
  bf16* x_final;                  // (R, C) residual stream after the last block
  bf16* h_final;                  // (R, C) final LayerNorm's output
  float *mean_final, *rstd_final; // (R)

  // Reused by every block.
  bf16* branch; // (R, C) output of attention's or the MLP's projection
  bf16* dx;     // (R, C) gradient of the residual stream
  bf16* dh;     // (R, C) gradient of a LayerNorm's or attention's output; aliases branch
  bf16* dwide;  // (R, 4C) gradient of the MLP's hidden layer, or of QKV

  bf16* logits;        // (logits_rows, Vp) of a BF16 head, (chunk, Vp) of an FP8 one: logits, then their gradient
  int64_t logits_rows; // rows per chunk of a BF16 head
  float* losses;       // (R)
  int32_t* inputs;     // (R)
  int32_t* targets;    // (R)
  // (R) each, null without a mask of documents; positions also null where they do not restart.
  int32_t *document_begin, *document_end, *positions;
  int64_t* first_token; // (1) its position in the step, over all micro-batches and ranks: keys stochastic rounding
  StepScalars* step;
  GuardState* guard;

  Fp8Buffers fp8;   // zero unless the precision is FP8
  MuonBuffers muon; // zero unless the optimizer is Muon
};

// Rows of logits per chunk. Each chunk re-reads and re-writes the FP32 gradient of wte: 8 Vp C bytes or 0.07 ms at
// 124M, against 2.6 ms of BF16 GEMMs for 8,192 rows. In FP8 a logit and its gradients take 4 bytes instead of 2, and
// 4,096 rows keep the head within the memory of the blocks' backward.
constexpr int64_t logits_chunk(Precision precision) { return precision == Precision::fp8 ? 4096 : 8192; }
static_assert(logits_chunk(Precision::bf16) == 2 * logits_chunk(Precision::fp8)); // see take_fp8_workspace

// sharded: optimizer state for one of the table's ranks alone.
CudaBuffers lay_out(Arena& arena, const ModelOptions& options, const ParameterTable& table, Recompute recompute,
                    bool sharded);

} // namespace gpt2
