// The layout of the flat parameter buffer. Master weights, gradients, Adam's moments and the BF16 weights are separate
// buffers of this one layout.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "kernels/optimizer.h"

namespace gpt2 {

// muon: Muon for the matrices of the blocks, AdamW for embeddings, positions, LayerNorms and biases.
enum class Optimizer { adamw, muon };

struct ParameterTensor {
  std::string name; // Hugging Face's name without "transformer.": "wte.weight", "h.3.attn.c_attn.weight", ...
  int64_t rows;     // matrices are (out, in) row-major: the transpose of Hugging Face's Conv1D
  int64_t cols;     // 0 for vectors
  int64_t offset;   // in elements, a multiple of kTensorAlign
  int bucket;       // 0: embeddings, 1..L: blocks, L + 1: final LayerNorm
  bool decay;       // weight decay: all 2-D tensors, embeddings included
  bool muon;        // updated by Muon: one moment instead of two

  int64_t count() const { return rows * (cols ? cols : 1); }
  std::vector<int64_t> shape() const { return cols ? std::vector{rows, cols} : std::vector{rows}; }
};

struct Bucket {
  int64_t offset; // in elements
  int64_t count;  // padding included; the ranks split it evenly, at multiples of kTensorAlign
};

// A slice of the flat buffer that one rank owns. The rank's compact buffers (master weights and moments) hold its
// slices contiguously.
struct OwnedSlice {
  int64_t offset, count; // in elements of the flat buffer
  int64_t at;            // in elements of the compact buffer
};

class ParameterTable {
 public:
  static constexpr int64_t kTensorAlign = 256; // elements: 256 bytes even as FP8
  static constexpr int kEmbeddings = 0;        // bucket 0; then the blocks and the final LayerNorm
  static constexpr int block_bucket(int layer) { return layer + 1; }

  // Buckets are padded to split evenly over `ranks`; all powers of two up to 64 have the same layout.
  explicit ParameterTable(const GPT2Config& config, int ranks = 1, Optimizer optimizer = Optimizer::adamw);

  std::span<const ParameterTensor> tensors() const { return tensors_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  int64_t size() const { return size_; } // elements of the flat buffer, padding included
  int64_t largest_bucket() const;        // elements
  Optimizer optimizer() const { return optimizer_; }
  int ranks() const { return ranks_; }

  const ParameterTensor& find(const std::string& name) const; // throws std::out_of_range

  // A rank's slices of the optimizer state: an equal part of every bucket, in order; a single rank has one slice.
  std::vector<OwnedSlice> shard(int rank) const;
  int64_t shard_size() const { return size_ / ranks_; } // elements of a rank's compact buffer

 private:
  int ranks_;
  Optimizer optimizer_;
  std::vector<ParameterTensor> tensors_;
  std::vector<Bucket> buckets_;
  int64_t size_ = 0;
};

// The whole buffer as one slice.
inline std::vector<OwnedSlice> whole(const ParameterTable& table) {
  return {{.offset = 0, .count = table.size(), .at = 0}};
}

// Elements of the compact buffer of `slices`.
inline int64_t compact_size(std::span<const OwnedSlice> slices) {
  return slices.empty() ? 0 : slices.back().at + slices.back().count;
}

// The parts of `slices` with a second moment: all but Muon's matrices. `at`: offset in the compact buffer of second
// moments.
std::vector<OwnedSlice> second_moment_slices(const ParameterTable& table, std::span<const OwnedSlice> slices);

// The offset in the compact buffer of `slices` of element `flat`, which one slice must contain.
int64_t compact_offset(std::span<const OwnedSlice> slices, int64_t flat);

// The intersection of a tensor and a slice; count 0 if they are disjoint.
struct TensorSlice {
  int64_t begin = 0, count = 0; // in elements of the tensor
  int64_t at = 0;               // in elements of the compact buffer
};
TensorSlice slice_of(const ParameterTensor& tensor, const OwnedSlice& slice);

// One byte per kDecayGranule elements: 1 if weight decay applies.
std::vector<uint8_t> make_decay_mask(const ParameterTable& table);

// Offsets of one block's parameters.
struct BlockOffsets {
  int64_t ln1_weight, ln1_bias;       // (C)
  int64_t qkv_weight, qkv_bias;       // (3C, C), (3C)
  int64_t proj_weight, proj_bias;     // (C, C), (C)
  int64_t ln2_weight, ln2_bias;       // (C)
  int64_t fc_weight, fc_bias;         // (4C, C), (4C)
  int64_t fcproj_weight, fcproj_bias; // (C, 4C), (C)
};

struct GPT2Offsets {
  int64_t wte; // (Vp, C), tied with the LM head
  int64_t wpe; // (T, C)
  std::vector<BlockOffsets> blocks;
  int64_t lnf_weight, lnf_bias; // (C)

  explicit GPT2Offsets(const ParameterTable& table);
};

// Initial values: the first `normals` elements N(0, deviation), the rest zero; without normals, a constant.
struct TensorInit {
  int64_t normals = 0;
  float deviation = 0;
  float constant = 0;
};
enum class InitProjections { normal, zero }; // of attn.c_proj and mlp.c_proj
TensorInit initial_values(const ParameterTensor& tensor, const GPT2Config& config,
                          InitProjections projections = InitProjections::normal);

// GPT-2's initialization into a zeroed flat buffer: N(0, 0.02), residual projections N(0, 0.02 / sqrt(2L)), LayerNorm
// weights 1, biases 0, padded vocabulary rows 0. A pure function of (config, seed, projections).
void initialize_parameters(std::span<float> flat, const ParameterTable& table, const GPT2Config& config, uint64_t seed,
                           InitProjections projections = InitProjections::normal);

} // namespace gpt2
