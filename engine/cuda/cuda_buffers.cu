#include "engine/cuda/cuda_buffers.h"

#include <cuda_bf16.h>

#include "engine/model/muon_layout.h"
#include "kernels/sm90/lm_head_fp8.h"

namespace gpt2 {

namespace {

constexpr const char* kKept = "activations";
constexpr const char* kShared = "workspace";

struct Shape {
  int64_t R, C;
  int64_t stats; // B * NH * T
};

// Saved per block besides x, in BF16 and FP8: 18 bytes per channel and token.
void take_kept(Arena& arena, BlockActivations& block, const Shape& shape) {
  const auto [R, C, stats] = shape;
  block.qkv = arena.take<bf16>(R * 3 * C, kKept);
  block.o = arena.take<bf16>(R * C, kKept);
  block.x_mid = arena.take<bf16>(R * C, kKept);
  block.pre = arena.take<bf16>(R * 4 * C, kKept);
  block.stats = arena.take<float>(stats, kKept);
  block.mean1 = arena.take<float>(R, kKept);
  block.rstd1 = arena.take<float>(R, kKept);
  block.mean2 = arena.take<float>(R, kKept);
  block.rstd2 = arena.take<float>(R, kKept);
}

void take_normed(Arena& arena, BlockActivations& block, const Shape& shape, const char* purpose) {
  block.h1 = arena.take<bf16>(shape.R * shape.C, purpose);
  block.h2 = arena.take<bf16>(shape.R * shape.C, purpose);
}

void take_blocks(Arena& arena, std::vector<BlockActivations>& blocks, BlockActivations shared, const Shape& shape,
                 Recompute recompute, bool fp8) {
  const bool keep_inner = recompute != Recompute::block;
  if (!keep_inner) take_kept(arena, shared, shape);
  for (BlockActivations& block : blocks) {
    block = shared;
    block.x = arena.take<bf16>(shape.R * shape.C, kKept);
    if (keep_inner) take_kept(arena, block, shape);
    if (fp8 || !keep_inner) continue;
    take_normed(arena, block, shape, kKept);
    if (recompute == Recompute::none) block.gelu = arena.take<bf16>(shape.R * 4 * shape.C, kKept);
  }
}

// FP8 values of the head, of a block's forward and of a block's backward share memory: their lifetimes are disjoint,
// except that Recompute::block runs a forward within backward. The BF16 outputs of LayerNorm and GELU, for blocks left
// in BF16, share it too.
void take_fp8_workspace(Arena& arena, CudaBuffers& b, BlockActivations& shared, const Shape& shape, int64_t chunk,
                        int64_t Vp, Recompute recompute) {
  const int64_t RC = shape.R * shape.C;
  Fp8Buffers& f = b.fp8;
  size_t start = arena.mark();
  f.h = arena.take<uint8_t>(RC, kShared);
  f.o = arena.take<uint8_t>(RC, kShared);
  f.gelu = arena.take<uint8_t>(4 * RC, kShared);

  if (recompute == Recompute::block) start = arena.mark();
  arena.rewind(start);
  f.h_final = arena.take<uint8_t>(RC, kShared);
  f.h_final_t = arena.take<uint8_t>(RC, kShared);
  b.h_final = arena.take<bf16>(RC, kShared);
  b.logits = arena.take<bf16>(2 * chunk * Vp, kShared);
  b.logits_rows =
      std::min(shape.R, 2 * chunk); // a BF16 head also uses the FP8 half: the same chunks and sums as in BF16
  f.dlogits = reinterpret_cast<uint8_t*>(b.logits + chunk * Vp);
  f.dlogits_t = f.dlogits + chunk * Vp;
  f.softmax_parts = arena.take<SoftmaxPart>(chunk * lm_head_parts_fp8(static_cast<int>(shape.C), static_cast<int>(Vp)),
                                            kShared); // 9 MB at 124M

  arena.rewind(start);
  f.dx = arena.take<uint8_t>(RC, kShared);
  f.dx_t = arena.take<uint8_t>(RC, kShared);
  f.h_t = arena.take<uint8_t>(RC, kShared);
  b.dwide = arena.take<bf16>(4 * RC, kShared);
  const size_t wide = arena.mark();
  f.wide = arena.take<uint8_t>(4 * RC, kShared);
  f.wide_t = arena.take<uint8_t>(4 * RC, kShared);
  f.gelu_t = arena.take<uint8_t>(4 * RC, kShared);
  arena.rewind(wide);
  take_normed(arena, shared, shape, kShared);
  shared.gelu = arena.take<bf16>(4 * RC, kShared);
  arena.skip_to_peak();
}

void take_fp8_state(Arena& arena, CudaBuffers& b, const ModelOptions& options, const ParameterTable& table) {
  const int count = fp8_tensor_count(options.config.layers);
  b.fp8.weights = arena.take<uint8_t>(table.size(), "parameters");
  if (options.purpose == Purpose::training) b.fp8.weights_t = arena.take<uint8_t>(table.size(), "parameters");
  b.fp8.scales = {.metas = arena.take<Fp8TensorMeta>(count, kShared),
                  .amaxes = arena.take<uint32_t>(count, kShared),
                  .measured = arena.take<uint32_t>(count, kShared),
                  .seen = arena.take<Fp8TensorMeta>(count, kShared),
                  .seen_amaxes = arena.take<uint32_t>(count, kShared),
                  .history = arena.take<float>(static_cast<int64_t>(count) * options.fp8.amax_history, kShared),
                  .format_max = arena.take<float>(count, kShared),
                  .applied_steps = arena.take<int64_t>(1, kShared),
                  .count = count,
                  .history_length = options.fp8.amax_history,
                  .margin = options.fp8.margin,
                  .interval = options.fp8.interval};
}

void take_vectors(Arena& arena, CudaBuffers& b, const ParameterTable& table) {
  for (const ParameterTensor& tensor : table.tensors()) {
    if (tensor.cols > 0) continue;
    b.vectors_at[tensor.offset] = b.vectors_count;
    b.vectors_count += (tensor.count() + 3) / 4 * 4; // kernels read four at a time
  }
  b.vectors = arena.take<float>(b.vectors_count, "parameters");
}

void take_muon(Arena& arena, MuonBuffers& m, const ParameterTable& table, int sharers) {
  const MuonWorkspace size = muon_workspace(muon_groups(table, {}, sharers, 0), sharers);
  m.in = arena.take<bf16>(size.in, kShared);
  m.out = arena.take<bf16>(size.out, kShared);
  m.gram = arena.take<bf16>(size.gram, kShared);
  m.poly = arena.take<bf16>(size.gram, kShared);
  if (sharers > 1) m.flat = arena.take<bf16>(table.size(), kShared);
}

// Ranks have equal slices, but unequal parts of them belong to AdamW: the maximum over ranks.
int64_t second_moments(const ParameterTable& table, bool sharded) {
  if (!sharded) return compact_size(second_moment_slices(table, whole(table)));
  int64_t most = 0;
  for (int rank = 0; rank < table.ranks(); ++rank)
    most = std::max(most, compact_size(second_moment_slices(table, table.shard(rank))));
  return most;
}

// Buffers of training alone.
void take_training(Arena& arena, CudaBuffers& b, const ModelOptions& options, const ParameterTable& table,
                   const Shape& shape, int64_t chunk, Recompute recompute, bool sharded) {
  const bool fp8 = options.precision == Precision::fp8;
  const int64_t RC = shape.R * shape.C, Vp = options.config.padded_vocab;
  b.grad = arena.take<float>(table.size(), "gradients");
  b.adam_m = arena.take<float>(sharded ? table.shard_size() : table.size(), "moments");
  b.adam_v = arena.take<float>(second_moments(table, sharded), "moments");
  b.decay_mask = arena.take<uint8_t>(table.size() / kDecayGranule, "parameters");

  const size_t activations = arena.mark();
  if (options.optimizer == Optimizer::muon) {
    take_muon(arena, b.muon, table, sharded ? table.ranks() : 1);
    arena.rewind(activations);
  }
  BlockActivations shared{};
  b.branch = arena.take<bf16>(RC, kShared);
  b.dx = arena.take<bf16>(RC, kShared);
  b.dh = b.branch; // disjoint lifetimes in a block; the head reads a row's branch before it writes its dh
  if (fp8) {
    take_fp8_workspace(arena, b, shared, shape, chunk, Vp, recompute);
  } else {
    b.dwide = arena.take<bf16>(4 * RC, kShared);
    b.h_final = arena.take<bf16>(RC, kKept);
    b.logits = arena.take<bf16>(chunk * Vp, kShared);
    if (recompute == Recompute::block) take_normed(arena, shared, shape, kKept);
    if (recompute != Recompute::none) shared.gelu = arena.take<bf16>(4 * RC, kKept);
  }
  take_blocks(arena, b.blocks, shared, shape, recompute, fp8);
  arena.skip_to_peak(); // the buffers below are live during an update
}

// Forward only: one set of activations for all blocks.
void take_inference(Arena& arena, CudaBuffers& b, const ModelOptions& options, const Shape& shape, int64_t chunk) {
  const int64_t RC = shape.R * shape.C;
  BlockActivations shared{};
  take_kept(arena, shared, shape);
  take_normed(arena, shared, shape, kShared);
  shared.x = arena.take<bf16>(RC, kKept);
  shared.gelu = arena.take<bf16>(4 * RC, kShared);
  std::fill(b.blocks.begin(), b.blocks.end(), shared);
  b.branch = arena.take<bf16>(RC, kShared);
  b.h_final = arena.take<bf16>(RC, kShared);
  b.logits = arena.take<bf16>(chunk * options.config.padded_vocab, kShared);
  if (options.precision != Precision::fp8) return;
  b.fp8.h = arena.take<uint8_t>(RC, kShared);
  b.fp8.o = arena.take<uint8_t>(RC, kShared);
  b.fp8.gelu = arena.take<uint8_t>(4 * RC, kShared);
  b.fp8.h_final = arena.take<uint8_t>(RC, kShared);
}

} // namespace

CudaBuffers lay_out(Arena& arena, const ModelOptions& options, const ParameterTable& table, Recompute recompute,
                    bool sharded) {
  const GPT2Config& config = options.config;
  const int64_t C = config.channels, R = static_cast<int64_t>(options.batch_size) * options.seq_len;
  const int64_t chunk = std::min(R, logits_chunk(options.precision));
  const Shape shape{R, C, R * config.heads};

  CudaBuffers b{};
  b.blocks.resize(config.layers);
  b.logits_rows = chunk;
  b.master = arena.take<float>(sharded ? table.shard_size() : table.size(), "parameters");
  if (sharded) take_vectors(arena, b, table);
  b.weights = arena.take<bf16>(table.size(), "parameters");
  if (options.precision == Precision::fp8) take_fp8_state(arena, b, options, table);
  if (options.purpose == Purpose::training)
    take_training(arena, b, options, table, shape, chunk, recompute, sharded);
  else
    take_inference(arena, b, options, shape, chunk);
  b.x_final = arena.take<bf16>(R * C, kKept);
  b.mean_final = arena.take<float>(R, kKept);
  b.rstd_final = arena.take<float>(R, kKept);

  b.losses = arena.take<float>(R, kShared);
  b.inputs = arena.take<int32_t>(R, kShared);
  b.targets = arena.take<int32_t>(R, kShared);
  if (options.documents.mask) {
    b.document_begin = arena.take<int32_t>(R, kShared);
    b.document_end = arena.take<int32_t>(R, kShared);
    if (options.documents.positions == DocumentPositions::restart) b.positions = arena.take<int32_t>(R, kShared);
  }
  b.first_token = arena.take<int64_t>(1, kShared);
  b.step = arena.take<StepScalars>(1, kShared);
  b.guard = arena.take<GuardState>(1, kShared);
  return b;
}

} // namespace gpt2
