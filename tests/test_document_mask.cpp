// Attention within documents: a packed sequence gives what its documents give one by one.
#include <doctest/doctest.h>

#include <cmath>

#include "kernels/documents.h"
#include "tests/tiny_gpt2.h"
#include "tests/trainer_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

constexpr int32_t kSeparator = 0;

// Random tokens other than the separator, which begins a document wherever `starts` says.
struct PackedBatch : TokenBatch {
  PackedBatch(int B, int T, int vocab, const std::vector<int>& starts) : TokenBatch(B, T, vocab, 3) {
    for (int32_t& token : inputs) token = token == kSeparator ? 1 : token;
    for (const int start : starts) inputs[static_cast<size_t>(start)] = kSeparator;
  }
};

ModelOptions masked_options(int T, DocumentPositions positions = DocumentPositions::restart) {
  ModelOptions options = tiny_options(1);
  options.config.seq_len = options.seq_len = T;
  options.documents = {.mask = true, .positions = positions, .separator = kSeparator};
  return options;
}

// One document of a sequence as a batch of its own.
Batch part(const TokenBatch& batch, int begin, int end) {
  const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
  return {.batch_size = 1,
          .seq_len = end - begin,
          .inputs = std::span(batch.inputs).subspan(first, count),
          .targets = std::span(batch.targets).subspan(first, count)};
}

} // namespace

TEST_CASE("documents begin at a separator or with the sequence, and end before the next separator") {
  const std::vector<int32_t> tokens{5, 0, 6, 7, 0, 0, 8, 9, /* second sequence */ 0, 1, 2, 3, 4, 5, 6, 0};
  std::vector<int32_t> begin(16), end(16), positions(16);
  Cpu cpu;
  find_documents(cpu, {begin.data(), end.data(), positions.data(), tokens.data(), 2, 8, kSeparator});
  CHECK(begin == std::vector<int32_t>{0, 1, 1, 1, 4, 5, 5, 5, 0, 0, 0, 0, 0, 0, 0, 7});
  CHECK(end == std::vector<int32_t>{1, 4, 4, 4, 5, 8, 8, 8, 7, 7, 7, 7, 7, 7, 7, 8});
  CHECK(positions == std::vector<int32_t>{0, 0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 0});
}

TEST_CASE("a packed sequence has the loss and the gradients of its documents one by one") {
  // Of one token, across the CPU's block of 64 queries, on it and beside it; no separator; the whole sequence.
  const std::vector<std::vector<int>> layouts{{0, 1, 2, 40, 64, 65, 128}, {5, 63, 100}, {}, {0}, {129},
                                              {0, 10, 20, 30, 90}};
  constexpr int T = 130;
  for (const std::vector<int>& starts : layouts) {
    CAPTURE(starts.size());
    const PackedBatch batch(1, T, 11, starts);
    ModelOptions options = masked_options(T);
    const auto packed = make_cpu_model(options);
    options.documents = {};
    const auto alone = make_cpu_model(options);
    randomize_parameters(*packed, 0.3);
    randomize_parameters(*alone, 0.3);

    std::vector<int> bounds{0};
    for (const int start : starts)
      if (start > 0) bounds.push_back(start);
    bounds.push_back(T);
    const int count = static_cast<int>(bounds.size()) - 1;
    double expected = 0;
    for (int i = 0; i < count; ++i) {
      const Batch document = part(batch, bounds[static_cast<size_t>(i)], bounds[static_cast<size_t>(i) + 1]);
      expected += evaluate(*alone, document).sum;
      alone->micro_step(document, i, count);
    }
    packed->micro_step(batch.view, 0, 1);
    CHECK(evaluate(*packed, batch.view).sum == doctest::Approx(expected).epsilon(1e-6));
    for (const ParameterTensor& tensor : packed->parameters().tensors()) {
      CAPTURE(tensor.name);
      const std::vector<float> got = packed->read_tensor(tensor, TensorKind::gradient).values,
                               want = alone->read_tensor(tensor, TensorKind::gradient).values;
      double error = 0, norm = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        error += std::pow(got[i] - want[i], 2);
        norm += std::pow(want[i], 2);
      }
      CHECK(error <= 1e-9 * norm);
    }
  }
}

TEST_CASE("without a separator a masked model has the bits of an unmasked one") {
  const PackedBatch batch(1, 100, 11, {});
  for (const DocumentPositions positions : {DocumentPositions::restart, DocumentPositions::absolute}) {
    ModelOptions options = masked_options(100, positions);
    const auto masked = make_cpu_model(options);
    options.documents = {};
    const auto plain = make_cpu_model(options);
    step(*masked, batch.view);
    step(*plain, batch.view);
    CHECK(same_parameters(*masked, *plain));
  }
}

TEST_CASE("absolute positions differ from restarted ones, and the mask alone changes the loss") {
  const PackedBatch batch(1, 100, 11, {0, 30, 70});
  const auto loss = [&](ModelOptions options) {
    const auto model = make_cpu_model(options);
    randomize_parameters(*model, 0.3);
    return evaluate(*model, batch.view).sum;
  };
  ModelOptions plain = masked_options(100);
  plain.documents = {};
  const double restarted = loss(masked_options(100)), absolute = loss(masked_options(100, DocumentPositions::absolute));
  CHECK(restarted != absolute);
  CHECK(absolute != loss(plain));
}

TEST_CASE("generated text is one document, also across a separator") {
  const PackedBatch batch(1, 12, 11, {4});
  ModelOptions options = masked_options(12);
  const auto masked = make_cpu_model(options);
  options.documents = {};
  const auto plain = make_cpu_model(options);
  std::vector<float> got(11), want(11);
  evaluate(*masked, batch.view); // leaves its documents behind
  masked->next_token_logits(batch.inputs, got);
  plain->next_token_logits(batch.inputs, want);
  CHECK(same_bits(got, want));
  masked->make_decoder(1, 12)->prefill(std::vector<RowTokens>{{0, batch.inputs}}, got);
  CHECK(same_bits(got, want));
}

TEST_CASE("--document_mask is stored: a resume keeps it bit for bit, and one that changes it says so") {
  Playground place;
  std::vector<uint16_t> tokens = Playground::tokens(40 * 8 + 1);
  for (size_t i = 0; i < tokens.size(); i += 5) tokens[i] = 50256;
  write_bin_shard(place.folder / "train.bin", tokens);
  const Outcome plain = run_cpu({place.options});
  place.options.document_mask = true, place.options.run_name = "masked", place.options.checkpoint_freq = 4;
  const Outcome masked = run_cpu({place.options});
  CHECK(masked.weights != plain.weights);

  const Outcome resumed = run_cpu(resume(place.options, "masked/4"));
  CHECK(resumed.weights == masked.weights);
  CHECK_FALSE(contains(resumed.printed, "document_mask true")); // the folder's name has the word, too
  place.options.document_mask = false;
  const Outcome changed = run_cpu(resume(place.options, "masked/4", {"document_mask"}));
  CHECK(contains(changed.printed, "document_mask true -> false"));
  CHECK(changed.weights != masked.weights);
}
