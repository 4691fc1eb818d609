// The decoder of the GPU engine against reading the whole text again: alone, in batches of few and of many rows,
// ragged.
#include "engine/model/decoder.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/gpu/model_test.h"

using namespace gpt2;

namespace {

std::unique_ptr<Model> reader() {
  ModelOptions options = small_options(Precision::bf16);
  options.purpose = Purpose::inference;
  auto model = make_cuda_model(options, deterministic());
  MemoryState weights = random_weights(*model);
  model->load_weights(weights);
  return model;
}

constexpr size_t kVocab = 1000; // small_config()

void check_close(std::span<const float> actual, std::span<const float> expected) {
  CHECK(relative_error(std::vector<float>(actual.begin(), actual.end()),
                       std::vector<float>(expected.begin(), expected.end())) < 2e-2); // BF16, another order of sums
}

} // namespace

TEST_CASE("logits of prefill and of 40 decode steps are those of the whole text, for few and for many rows") {
  for (const int rows : {1, 2, 3, 8, 9, 20}) {
    CAPTURE(rows);
    const auto model = reader();
    const auto decoder = model->make_decoder(rows, 64);
    const TokenBatch texts(rows, 64, static_cast<int>(kVocab), 3);
    const auto text = [&](int row) {
      return std::span<const int32_t>(texts.inputs).subspan(static_cast<size_t>(row) * 64, 64);
    };
    const auto begin = [](int row) { return static_cast<size_t>(1 + row * 7 % 23); }; // ragged: 1 to 23 tokens

    std::vector<float> logits(static_cast<size_t>(rows) * kVocab), expected(kVocab);
    std::vector<RowTokens> prompts;
    for (int row = 0; row < rows; ++row) prompts.push_back({row, text(row).first(begin(row))});
    decoder->prefill(prompts, logits);
    for (size_t step = 0; step <= 40; ++step) { // the second step captures the graph, the others launch it
      for (int row = 0; row < rows && (step < 4 || step % 10 == 0); ++row) {
        model->next_token_logits(text(row).first(begin(row) + step), expected);
        check_close(std::span(logits).subspan(static_cast<size_t>(row) * kVocab, kVocab), expected);
      }
      std::vector<RowToken> next;
      for (int row = 0; row < rows; ++row) next.push_back({row, text(row)[begin(row) + step]});
      decoder->decode(next, logits);
    }
  }
}

TEST_CASE("rows that rest keep what they have read") {
  const auto model = reader();
  const auto decoder = model->make_decoder(3, 64);
  const TokenBatch texts(3, 64, static_cast<int>(kVocab), 4);
  const auto text = [&](size_t row) { return std::span<const int32_t>(texts.inputs).subspan(row * 64, 64); };
  std::vector<float> three(3 * kVocab), one(kVocab), expected(kVocab);
  decoder->prefill(std::vector<RowTokens>{{0, text(0).first(5)}, {1, text(1).first(9)}, {2, text(2).first(2)}}, three);
  for (size_t i = 9; i < 20; ++i) decoder->decode(std::vector<RowToken>{{1, text(1)[i]}}, one); // 0 and 2 rest
  model->next_token_logits(text(1).first(20), expected);
  check_close(one, expected);
  decoder->decode(std::vector<RowToken>{{2, text(2)[2]}}, one);
  model->next_token_logits(text(2).first(3), expected);
  check_close(one, expected);
  decoder->prefill(std::vector<RowTokens>{{1, text(0).first(30)}}, one); // a new text in an old row
  decoder->decode(std::vector<RowToken>{{1, text(0)[30]}}, one);
  model->next_token_logits(text(0).first(31), expected);
  check_close(one, expected);
}

TEST_CASE("the likeliest tokens are those of the logits") {
  const auto model = reader();
  for (const int rows : {1, 9}) {
    const auto decoder = model->make_decoder(rows, 64), other = model->make_decoder(rows, 64);
    const TokenBatch texts(rows, 64, static_cast<int>(kVocab), 6);
    std::vector<float> logits(static_cast<size_t>(rows) * kVocab);
    std::vector<RowTokens> prompts;
    std::vector<RowToken> next;
    for (int row = 0; row < rows; ++row) {
      const std::span text = std::span<const int32_t>(texts.inputs).subspan(static_cast<size_t>(row) * 64, 64);
      prompts.push_back({row, text.first(5)});
      next.push_back({row, text[5]});
    }
    decoder->prefill(prompts, logits);
    other->prefill(prompts, logits);
    for (const int count : {1, 50, 1000}) {
      std::vector<TokenLogit> likeliest(static_cast<size_t>(rows * count));
      decoder->decode(next, logits);
      other->decode(next, count, likeliest);
      for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
        std::ranges::sort(std::span(likeliest).subspan(row * static_cast<size_t>(count), static_cast<size_t>(count)),
                          likelier);
        const auto expected = top_k_tokens(std::span(logits).subspan(row * kVocab, kVocab), static_cast<size_t>(count));
        for (size_t i = 0; i < expected.size(); ++i) {
          CHECK(likeliest[row * expected.size() + i].token == expected[i].token);
          CHECK(likeliest[row * expected.size() + i].logit == expected[i].logit);
        }
      }
    }
  }
}

TEST_CASE("a model that trains writes with the weights that it has then") {
  const auto model = make_cuda_model(small_options(Precision::bf16), deterministic());
  const TokenBatch batch(4, 64, static_cast<int>(kVocab), 5);
  std::vector<float> logits(kVocab), expected(kVocab);
  for (int i = 0; i < 2; ++i) {
    const auto decoder = model->make_decoder(1, 32);
    const std::span<const int32_t> text(batch.inputs);
    decoder->prefill(std::vector<RowTokens>{{0, text.first(10)}}, logits);
    for (size_t t = 10; t < 14; ++t) decoder->decode(std::vector<RowToken>{{0, text[t]}}, logits);
    model->next_token_logits(text.first(14), expected);
    check_close(logits, expected);
    model->micro_step(batch.view, 0, 1);
    UpdateSettings update;
    update.adamw.lr = 1e-2f;
    model->update(update);
    CHECK(model->step_result().verdict == Verdict::applied);
  }
}
