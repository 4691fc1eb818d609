// Decoders: the cache gives what reading the whole text again gives, alone and in a batch, in FP32 and emulated FP8.
#include "engine/model/decoder.h"

#include <doctest/doctest.h>

#include <numeric>
#include <set>

#include "tests/gpt2_reference.h"
#include "tests/tiny_gpt2.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

// Big enough to tell tokens apart, small enough to read 200 of them 200 times.
ModelOptions small_options(Precision precision) {
  ModelOptions options;
  options.config = {
      .name = "small", .layers = 3, .heads = 4, .channels = 64, .seq_len = 256, .vocab = 301, .padded_vocab = 384};
  options.batch_size = 4;
  options.seq_len = 64;
  options.precision = precision;
  options.seed = 11;
  return options;
}

// Some steps of training: the FP8 recipe has its scales, and the weights say something.
std::unique_ptr<Model> small_model(Precision precision) {
  auto model = make_cpu_model(small_options(precision));
  randomize_parameters(*model, 0.1);
  for (uint64_t i = 0; i < 3; ++i) step(*model, TokenBatch(4, 32, 301, i).view, 1e-3f);
  ModelOptions reading = small_options(precision);
  reading.purpose = Purpose::inference;
  reading.batch_size = 1;
  reading.seq_len = 256;
  auto reader = make_cpu_model(reading);
  MemoryState state = saved(*model);
  reader->load_state(state);
  return reader;
}

int32_t likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

std::vector<int32_t> some_tokens(int count, uint64_t seed) { return TokenBatch(1, count, 301, seed).inputs; }

std::vector<int32_t> write_greedily(Decoder& decoder, int row, const std::vector<int32_t>& prompt, int tokens) {
  std::vector<float> logits(static_cast<size_t>(decoder.config().vocab));
  std::vector<int32_t> written;
  decoder.prefill(std::vector<RowTokens>{{row, prompt}}, logits);
  while (static_cast<int>(written.size()) < tokens) {
    written.push_back(likeliest(logits));
    decoder.decode(std::vector<RowToken>{{row, written.back()}}, logits);
  }
  return written;
}

} // namespace

TEST_CASE("200 greedy tokens are the same with and without a cache") {
  for (const Precision precision : {Precision::fp32, Precision::fp8}) {
    CAPTURE(to_string(precision));
    const auto model = small_model(precision);
    const auto prompt = some_tokens(7, 3);
    const auto cached = write_greedily(*model->make_decoder(1, 256), 0, prompt, 200);
    CHECK(cached == write_greedily(*make_recomputing_decoder(*model, 1, 256), 0, prompt, 200));
    CHECK(std::set<int32_t>(cached.begin(), cached.end()).size() > 5); // not one token for ever
  }
}
