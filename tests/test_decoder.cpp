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

TEST_CASE("logits of prefill and decode are those of the reference") {
  const OneThread one_thread;
  const auto model = make_cpu_model(tiny_options());
  randomize_parameters(*model, 0.3);
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5};
  const auto expected =
      ReferenceGPT2(model->config(), model->parameters()).sequence_logits(flat_parameters(*model), tokens);
  for (size_t prefilled = 1; prefilled <= tokens.size(); ++prefilled) {
    const auto decoder = model->make_decoder(2, 5);
    std::vector<float> logits(11);
    const auto check = [&](size_t length) {
      CHECK(decoder->length(1) == static_cast<int>(length));
      for (size_t v = 0; v < logits.size(); ++v)
        CHECK(logits[v] == doctest::Approx(expected[length - 1][v]).epsilon(1e-4).scale(1));
    };
    decoder->prefill(std::vector<RowTokens>{{1, std::span(tokens).first(prefilled)}}, logits);
    check(prefilled);
    for (size_t i = prefilled; i < tokens.size(); ++i) {
      decoder->decode(std::vector<RowToken>{{1, tokens[i]}}, logits);
      check(i + 1);
    }
  }
}

TEST_CASE("200 greedy tokens are the same with and without a cache") {
  const OneThread one_thread;
  const auto model = small_model(Precision::fp32);
  const auto prompt = some_tokens(7, 3);
  const auto cached = write_greedily(*model->make_decoder(1, 256), 0, prompt, 200);
  CHECK(cached == write_greedily(*make_recomputing_decoder(*model, 1, 256), 0, prompt, 200));
  CHECK(std::set<int32_t>(cached.begin(), cached.end()).size() > 5); // not one token for ever
}

// The last bit of a sum, whose order depends on the number of rows, decides between two FP8 codes: what is compared is
// each next token of one and the same text, and two that are equally likely to within a code may change places.
TEST_CASE("emulated FP8: each of 200 greedy tokens is the same without a cache") {
  const OneThread one_thread;
  const auto model = small_model(Precision::fp8);
  const auto cached = model->make_decoder(1, 256), recomputing = make_recomputing_decoder(*model, 1, 256);
  const auto prompt = some_tokens(7, 3);
  std::vector<float> logits(301), expected(301);
  cached->prefill(std::vector<RowTokens>{{0, prompt}}, logits);
  recomputing->prefill(std::vector<RowTokens>{{0, prompt}}, expected);
  CHECK(logits == expected);
  int changed_places = 0;
  for (int i = 0; i < 200; ++i) {
    const int32_t token = likeliest(logits), other = likeliest(expected);
    changed_places += token != other;
    const float spread = *std::ranges::max_element(expected) - *std::ranges::min_element(expected);
    CHECK(expected[static_cast<size_t>(other)] - expected[static_cast<size_t>(token)] < 0.02f * spread);
    cached->decode(std::vector<RowToken>{{0, token}}, logits);
    recomputing->decode(std::vector<RowToken>{{0, token}}, expected);
  }
  CHECK(changed_places <= 4);
}

TEST_CASE("rows of different lengths write in a batch what they write alone") {
  const OneThread one_thread;
  // A cold FP8 recipe measures what it reads: rows must not measure each other.
  enum class Case { fp32, fp8, cold_fp8 };
  for (const Case which : {Case::fp32, Case::fp8, Case::cold_fp8}) {
    CAPTURE(static_cast<int>(which));
    const auto model = which == Case::fp32  ? small_model(Precision::fp32)
                       : which == Case::fp8 ? small_model(Precision::fp8)
                                            : make_cpu_model(small_options(Precision::fp8));
    if (which == Case::cold_fp8) randomize_parameters(*model, 0.1);
    constexpr int kTokens = 20;
    const std::vector<std::vector<int32_t>> prompts{some_tokens(1, 1), some_tokens(40, 2), some_tokens(7, 3)};
    const auto decoder = model->make_decoder(5, 60);
    std::vector<float> logits(3 * 301);
    // Not in order, and not all rows: 4, 0, 2.
    const std::vector<int> rows{4, 0, 2};
    std::vector<RowTokens> texts;
    for (size_t i = 0; i < 3; ++i) texts.push_back({rows[i], prompts[i]});
    decoder->prefill(texts, logits);
    std::vector<std::vector<int32_t>> written(3);
    for (int token = 0; token < kTokens; ++token) {
      std::vector<RowToken> next;
      for (size_t i = 0; i < 3; ++i) {
        written[i].push_back(likeliest(std::span(logits).subspan(i * 301, 301)));
        next.push_back({rows[i], written[i].back()});
      }
      decoder->decode(next, logits);
    }
    for (size_t i = 0; i < 3; ++i)
      CHECK(written[i] == write_greedily(*model->make_decoder(1, 60), 0, prompts[i], kTokens));
  }
}

TEST_CASE("a row that reads a new prompt forgets the old one, and the others do not") {
  const OneThread one_thread;
  const auto model = small_model(Precision::fp32);
  const auto decoder = model->make_decoder(2, 30);
  const auto a = some_tokens(20, 1), b = some_tokens(9, 2);
  std::vector<float> two(2 * 301), one(301), expected(301);
  decoder->prefill(std::vector<RowTokens>{{0, a}, {1, b}}, two);
  decoder->prefill(std::vector<RowTokens>{{0, std::span(a).first(5)}}, one);
  model->next_token_logits(std::span(a).first(5), expected);
  CHECK(one == expected);
  std::vector<int32_t> longer = b;
  longer.push_back(17);
  decoder->decode(std::vector<RowToken>{{1, 17}}, one);
  model->next_token_logits(longer, expected);
  for (size_t v = 0; v < one.size(); ++v) CHECK(one[v] == doctest::Approx(expected[v]).epsilon(1e-4).scale(1));
}

TEST_CASE("more rows than the model has room for are read in parts") {
  const OneThread one_thread;
  const auto model = make_cpu_model(tiny_options(1)); // activations of 5 tokens
  randomize_parameters(*model, 0.3);
  constexpr size_t kRows = 12;
  const auto decoder = model->make_decoder(kRows, 5);
  const std::vector<int32_t> prompts{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1};
  std::vector<RowTokens> texts;
  std::vector<RowToken> next;
  for (size_t i = 0; i < kRows; ++i) {
    texts.push_back({static_cast<int>(i), std::span(prompts).subspan(i, 1)});
    next.push_back({static_cast<int>(i), 3});
  }
  std::vector<float> logits(kRows * 11), expected(11);
  decoder->prefill(texts, logits);
  decoder->decode(next, logits);
  for (size_t i = 0; i < kRows; ++i) {
    model->next_token_logits(std::vector<int32_t>{prompts[i], 3}, expected);
    for (size_t v = 0; v < 11; ++v) CHECK(logits[i * 11 + v] == doctest::Approx(expected[v]).epsilon(1e-4).scale(1));
  }
}

TEST_CASE("writing leaves no trace in training") {
  const OneThread one_thread;
  for (const ModelOptions& options : {tiny_options(), with_fp8(tiny_options())}) {
    const auto quiet = make_cpu_model(options), writing = make_cpu_model(options);
    TokenBatch batch(4, 5, 11, 31);
    for (int i = 0; i < 3; ++i) {
      write_greedily(*writing->make_decoder(1, 5), 0, {1, 2}, 3);
      CHECK(step(*quiet, batch.view).loss == step(*writing, batch.view).loss);
    }
    CHECK(saved(*quiet) == saved(*writing));
  }
}

TEST_CASE("a decoder refuses what it cannot read") {
  const auto model = make_cpu_model(tiny_options());
  for (const auto& decoder : {model->make_decoder(2, 4), make_recomputing_decoder(*model, 2, 4)}) {
    std::vector<float> one(11), two(22);
    const std::vector<int32_t> text{1, 2, 3, 4, 5};
    const auto prefill = [&](int row, size_t first, size_t count, std::span<float> logits) {
      decoder->prefill(std::vector<RowTokens>{{row, std::span(text).subspan(first, count)}}, logits);
    };
    const auto decode = [&](int row, int32_t token) { decoder->decode(std::vector<RowToken>{{row, token}}, one); };
    CHECK_THROWS_AS(decode(0, 1), std::invalid_argument); // no prompt yet
    CHECK_THROWS_AS(prefill(2, 0, 1, one), std::invalid_argument);
    CHECK_THROWS_AS(prefill(0, 0, 0, one), std::invalid_argument);
    CHECK_THROWS_AS(prefill(0, 0, 5, one), std::invalid_argument); // 4 positions
    CHECK_THROWS_AS(prefill(0, 0, 1, two), std::invalid_argument);
    prefill(0, 0, 3, one);
    CHECK_THROWS_AS(decode(0, 11), std::invalid_argument);
    CHECK_THROWS_AS(decoder->decode(std::vector<RowToken>{{0, 1}, {0, 2}}, two), std::invalid_argument);
    decode(0, 1);
    CHECK(decoder->length(0) == 4);
    CHECK_THROWS_AS(decode(0, 1), std::invalid_argument); // full
    CHECK(decoder->length(1) == 0);
  }
  CHECK_THROWS_AS(model->make_decoder(1, 6), std::invalid_argument);
  CHECK_THROWS_AS(model->make_decoder(0, 4), std::invalid_argument);
}
