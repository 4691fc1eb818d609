#include "engine/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "engine/base/rng.h"

namespace gpt2 {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

std::string block_prefix(int layer) { return "h." + std::to_string(layer) + "."; }

// The tensors of a block, in order. Rows and columns are multiples of C; vectors have no columns.
struct BlockTensor {
  const char* name;
  int rows, cols;
  int64_t BlockOffsets::*offset;
};

constexpr BlockTensor kBlockTensors[] = {
    {"ln_1.weight", 1, 0, &BlockOffsets::ln1_weight},          {"ln_1.bias", 1, 0, &BlockOffsets::ln1_bias},
    {"attn.c_attn.weight", 3, 1, &BlockOffsets::qkv_weight},   {"attn.c_attn.bias", 3, 0, &BlockOffsets::qkv_bias},
    {"attn.c_proj.weight", 1, 1, &BlockOffsets::proj_weight},  {"attn.c_proj.bias", 1, 0, &BlockOffsets::proj_bias},
    {"ln_2.weight", 1, 0, &BlockOffsets::ln2_weight},          {"ln_2.bias", 1, 0, &BlockOffsets::ln2_bias},
    {"mlp.c_fc.weight", 4, 1, &BlockOffsets::fc_weight},       {"mlp.c_fc.bias", 4, 0, &BlockOffsets::fc_bias},
    {"mlp.c_proj.weight", 1, 4, &BlockOffsets::fcproj_weight}, {"mlp.c_proj.bias", 1, 0, &BlockOffsets::fcproj_bias},
};

} // namespace

ParameterTable::ParameterTable(const GPT2Config& config, int ranks, Optimizer optimizer)
    : ranks_(ranks), optimizer_(optimizer) {
  const int64_t C = config.channels;
  const int64_t bucket_align = kTensorAlign * (64 % ranks == 0 ? 64 : ranks);

  const auto add = [this](const std::string& name, int64_t rows, int64_t cols = 0) {
    const int bucket = static_cast<int>(buckets_.size());
    tensors_.push_back({.name = name,
                        .rows = rows,
                        .cols = cols,
                        .offset = size_,
                        .bucket = bucket,
                        .decay = cols > 0,
                        .muon = optimizer_ == Optimizer::muon && cols > 0 && bucket != kEmbeddings});
    size_ = round_up(size_ + tensors_.back().count(), kTensorAlign);
  };
  const auto close_bucket = [&] {
    const int64_t begin = buckets_.empty() ? 0 : buckets_.back().offset + buckets_.back().count;
    size_ = round_up(size_, bucket_align);
    buckets_.push_back({.offset = begin, .count = size_ - begin});
  };

  add("wte.weight", config.padded_vocab, C);
  add("wpe.weight", config.seq_len, C);
  close_bucket();
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const BlockTensor& tensor : kBlockTensors)
      add(block_prefix(layer) + tensor.name, tensor.rows * C, tensor.cols * C);
    close_bucket();
  }
  add("ln_f.weight", C);
  add("ln_f.bias", C);
  close_bucket();
}

const ParameterTensor& ParameterTable::find(const std::string& name) const {
  for (const ParameterTensor& tensor : tensors_) {
    if (tensor.name == name) return tensor;
  }
  throw std::out_of_range("no parameter named '" + name + "'");
}

int64_t ParameterTable::largest_bucket() const { return std::ranges::max_element(buckets_, {}, &Bucket::count)->count; }

std::vector<OwnedSlice> ParameterTable::shard(int rank) const {
  if (ranks_ == 1) return {{.offset = 0, .count = size_, .at = 0}};
  std::vector<OwnedSlice> slices;
  for (const Bucket& bucket : buckets_) {
    const int64_t count = bucket.count / ranks_;
    slices.push_back({.offset = bucket.offset + rank * count, .count = count, .at = bucket.offset / ranks_});
  }
  return slices;
}

std::vector<OwnedSlice> second_moment_slices(const ParameterTable& table, std::span<const OwnedSlice> slices) {
  if (table.optimizer() == Optimizer::adamw) return {slices.begin(), slices.end()};
  std::vector<OwnedSlice> kept;
  int64_t at = 0;
  const auto keep = [&](int64_t begin, int64_t end) {
    if (begin >= end) return;
    kept.push_back({.offset = begin, .count = end - begin, .at = at});
    at += end - begin;
  };
  for (const OwnedSlice& slice : slices) {
    const int64_t end = slice.offset + slice.count;
    int64_t begin = slice.offset;
    for (const ParameterTensor& tensor : table.tensors()) {
      if (!tensor.muon || tensor.offset >= end) continue;
      keep(begin, std::min(tensor.offset, end));
      begin = std::max(begin, round_up(tensor.offset + tensor.count(), ParameterTable::kTensorAlign));
    }
    keep(begin, end);
  }
  return kept;
}

int64_t compact_offset(std::span<const OwnedSlice> slices, int64_t flat) {
  for (const OwnedSlice& slice : slices) {
    if (flat >= slice.offset && flat < slice.offset + slice.count) return slice.at + flat - slice.offset;
  }
  throw std::out_of_range("no slice holds this element");
}

TensorSlice slice_of(const ParameterTensor& tensor, const OwnedSlice& slice) {
  const int64_t begin = std::max(tensor.offset, slice.offset);
  const int64_t end = std::min(tensor.offset + tensor.count(), slice.offset + slice.count);
  if (begin >= end) return {};
  return {.begin = begin - tensor.offset, .count = end - begin, .at = slice.at + begin - slice.offset};
}

static_assert(ParameterTable::kTensorAlign % kDecayGranule == 0); // no granule belongs to two tensors

std::vector<uint8_t> make_decay_mask(const ParameterTable& table) {
  std::vector<uint8_t> mask(static_cast<size_t>(table.size() / kDecayGranule), 0);
  for (const ParameterTensor& tensor : table.tensors()) {
    const int64_t first = tensor.offset / kDecayGranule;
    const int64_t end = (tensor.offset + tensor.count() + kDecayGranule - 1) / kDecayGranule;
    std::fill(mask.begin() + first, mask.begin() + end, static_cast<uint8_t>(tensor.decay));
  }
  return mask;
}

GPT2Offsets::GPT2Offsets(const ParameterTable& table) {
  const auto offset = [&](const std::string& name) { return table.find(name).offset; };
  wte = offset("wte.weight");
  wpe = offset("wpe.weight");
  const int layers = static_cast<int>(table.buckets().size()) - 2; // without the embeddings and the final LayerNorm
  for (int layer = 0; layer < layers; ++layer) {
    BlockOffsets& block = blocks.emplace_back();
    for (const BlockTensor& tensor : kBlockTensors) block.*tensor.offset = offset(block_prefix(layer) + tensor.name);
  }
  lnf_weight = offset("ln_f.weight");
  lnf_bias = offset("ln_f.bias");
}

TensorInit initial_values(const ParameterTensor& tensor, const GPT2Config& config, InitProjections projections) {
  const bool is_matrix = tensor.cols > 0, is_projection = is_matrix && tensor.name.ends_with("c_proj.weight");
  if (is_projection && projections == InitProjections::zero) return {};
  if (!is_matrix) return {.constant = tensor.name.ends_with(".weight") ? 1.0f : 0.0f}; // LayerNorm weights are 1
  const int64_t real_rows = tensor.name == "wte.weight" ? config.vocab : tensor.rows;
  const double residual_deviation = 0.02 / std::sqrt(2.0 * config.layers);
  return {.normals = real_rows * tensor.cols,
          .deviation = static_cast<float>(is_projection ? residual_deviation : 0.02)};
}

void initialize_parameters(std::span<float> flat, const ParameterTable& table, const GPT2Config& config, uint64_t seed,
                           InitProjections projections) {
  for (size_t t = 0; t < table.tensors().size(); ++t) {
    const ParameterTensor& tensor = table.tensors()[t];
    const TensorInit init = initial_values(tensor, config, projections);
    float* const values = flat.data() + tensor.offset;
    std::fill_n(values, tensor.count(), init.constant);
    const Rng rng(seed, t); // a stream per tensor, an index per element: the bits do not depend on threads
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < init.normals; ++i) {
      values[i] = static_cast<float>(init.deviation * rng.normal(static_cast<uint64_t>(i)));
    }
  }
}

} // namespace gpt2
