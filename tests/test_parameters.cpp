// The flat buffer: names, places, and GPT-2's initialization.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include <omp.h>

#include "engine/model/parameters.h"

using namespace gpt2;

namespace {

GPT2Config small_config() {
  return {.name = "small", .layers = 3, .heads = 2, .channels = 48, .seq_len = 20, .vocab = 300, .padded_vocab = 384};
}

std::vector<float> initialized(const GPT2Config& config, uint64_t seed) {
  const ParameterTable table(config);
  std::vector<float> flat(static_cast<size_t>(table.size()), 0.0f);
  initialize_parameters(flat, table, config, seed);
  return flat;
}

struct Moments {
  double mean = 0, deviation = 0;
};

Moments moments(std::span<const float> values) {
  Moments result;
  const double n = static_cast<double>(values.size());
  for (const float value : values) result.mean += value / n;
  for (const float value : values) result.deviation += (value - result.mean) * (value - result.mean) / n;
  result.deviation = std::sqrt(result.deviation);
  return result;
}

} // namespace

TEST_CASE("shards of any number of ranks cover every bucket once, in equal parts") {
  const GPT2Config config = small_config();
  CHECK(ParameterTable(config).shard(0).size() == 1);
  CHECK(ParameterTable(config).shard(0).front().count == ParameterTable(config).size());
  for (const int ranks : {2, 3, 7, 8, 64, 100}) {
    CAPTURE(ranks);
    const ParameterTable table(config, ranks);
    std::vector<int> owners(static_cast<size_t>(table.size() / ParameterTable::kTensorAlign));
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t filled = 0; // of the rank's compact buffer
      for (const OwnedSlice& slice : table.shard(rank)) {
        REQUIRE(slice.offset % ParameterTable::kTensorAlign == 0);
        REQUIRE(slice.count % ParameterTable::kTensorAlign == 0);
        CHECK(slice.at == filled);
        filled += slice.count;
        for (int64_t i = 0; i < slice.count / ParameterTable::kTensorAlign; ++i)
          owners[static_cast<size_t>(slice.offset / ParameterTable::kTensorAlign + i)] += 1;
      }
      CHECK(filled == table.shard_size());
    }
    CHECK(std::all_of(owners.begin(), owners.end(), [](int count) { return count == 1; }));
  }
  CHECK(ParameterTable(config, 8).size() == ParameterTable(config).size()); // one layout for powers of two
}

TEST_CASE("tensors carry Hugging Face's names, in order") {
  const ParameterTable table(small_config());
  CHECK(table.tensors().size() == 2 + 3 * 12 + 2);
  CHECK(table.tensors().front().name == "wte.weight");
  CHECK(table.tensors()[1].name == "wpe.weight");
  CHECK(table.tensors()[2].name == "h.0.ln_1.weight");
  CHECK(table.tensors()[4].name == "h.0.attn.c_attn.weight");
  CHECK(table.tensors()[12].name == "h.0.mlp.c_proj.weight");
  CHECK(table.tensors().back().name == "ln_f.bias");
  CHECK(table.find("h.2.mlp.c_proj.weight").rows == 48);
  CHECK(table.find("h.2.mlp.c_proj.weight").cols == 192);
  CHECK(table.find("h.1.attn.c_attn.bias").rows == 144);
  CHECK(table.find("h.1.attn.c_attn.bias").cols == 0);
  CHECK_THROWS_AS(table.find("h.3.ln_1.weight"), std::out_of_range);
}

TEST_CASE("tensors do not overlap, are aligned, and lie in their bucket") {
  for (const GPT2Config& config : {small_config(), config_by_name("gpt2")}) {
    const ParameterTable table(config);
    int64_t end = 0, real = 0;
    for (const ParameterTensor& tensor : table.tensors()) {
      CHECK(tensor.offset % ParameterTable::kTensorAlign == 0);
      CHECK(tensor.offset >= end);
      end = tensor.offset + tensor.count();
      real += tensor.count();
      const Bucket& bucket = table.buckets()[static_cast<size_t>(tensor.bucket)];
      CHECK(tensor.offset >= bucket.offset);
      CHECK(end <= bucket.offset + bucket.count);
      CHECK(tensor.decay == (tensor.cols > 0));
    }
    CHECK(end <= table.size());
    CHECK(real == parameter_count(config) + int64_t{config.padded_vocab - config.vocab} * config.channels);

    CHECK(table.buckets().size() == static_cast<size_t>(config.layers) + 2);
    int64_t next = 0;
    for (const Bucket& bucket : table.buckets()) {
      CHECK(bucket.offset == next);
      CHECK(bucket.count % (64 * ParameterTable::kTensorAlign) == 0); // powers of two up to 64 ranks
      next += bucket.count;
    }
    CHECK(next == table.size());
  }
}

TEST_CASE("offsets by role are those of the table") {
  const ParameterTable table(small_config());
  const GPT2Offsets at(table);
  CHECK(at.blocks.size() == 3);
  CHECK(at.wpe == table.find("wpe.weight").offset);
  CHECK(at.blocks[1].ln1_bias == table.find("h.1.ln_1.bias").offset);
  CHECK(at.blocks[1].qkv_weight == table.find("h.1.attn.c_attn.weight").offset);
  CHECK(at.blocks[1].proj_weight == table.find("h.1.attn.c_proj.weight").offset);
  CHECK(at.blocks[2].fc_bias == table.find("h.2.mlp.c_fc.bias").offset);
  CHECK(at.blocks[2].fcproj_weight == table.find("h.2.mlp.c_proj.weight").offset);
  CHECK(at.lnf_bias == table.find("ln_f.bias").offset);
}

TEST_CASE("initialization is GPT-2's") {
  const GPT2Config config = small_config();
  const ParameterTable table(config);
  const std::vector<float> flat = initialized(config, 42);
  for (const ParameterTensor& tensor : table.tensors()) {
    CAPTURE(tensor.name);
    const bool embedding = tensor.name == "wte.weight";
    const int64_t rows = embedding ? config.vocab : tensor.rows;
    const std::span values(flat.data() + tensor.offset, static_cast<size_t>(rows * std::max<int64_t>(tensor.cols, 1)));
    if (tensor.cols == 0) {
      const float expected =
          tensor.name.find("ln_") != std::string::npos && tensor.name.find("weight") != std::string::npos ? 1.0f : 0.0f;
      for (const float value : values) CHECK(value == expected);
      continue;
    }
    const bool residual = tensor.name.find("c_proj") != std::string::npos;
    const double deviation = residual ? 0.02 / std::sqrt(6.0) : 0.02;
    const Moments found = moments(values);
    const double n = static_cast<double>(values.size());
    CHECK(std::abs(found.mean) < 4 * deviation / std::sqrt(n));
    CHECK(std::abs(found.deviation - deviation) < 4 * deviation / std::sqrt(2 * n));
  }
  const ParameterTensor& wte = table.find("wte.weight");
  for (int64_t i = int64_t{300} * 48; i < wte.count(); ++i) CHECK(flat[static_cast<size_t>(wte.offset + i)] == 0.0f);
}

TEST_CASE("initialization is a pure function of the seed, whatever the threads") {
  const GPT2Config config = small_config();
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const std::vector<float> one = initialized(config, 42);
  omp_set_num_threads(3);
  const std::vector<float> three = initialized(config, 42);
  omp_set_num_threads(threads);
  CHECK(one == three);
  CHECK(one != initialized(config, 43));

  // Tensors have streams of their own: no two blocks start alike.
  const ParameterTable table(config);
  std::set<float> firsts;
  for (const ParameterTensor& tensor : table.tensors()) {
    if (tensor.cols > 0) firsts.insert(one[static_cast<size_t>(tensor.offset)]);
  }
  CHECK(firsts.size() == 2 + 3 * 4);
}
