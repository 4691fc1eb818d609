// What may not reach a kernel: batches of another shape, tokens outside the vocabulary.
#include "engine/model/batch.h"

#include <doctest/doctest.h>

#include <limits>
#include <stdexcept>
#include <vector>

#include "engine/model/model.h"
#include "tests/expect_error.h"

using namespace gpt2;

namespace {

constexpr int kVocab = 11;

ModelOptions made_for(int batch_size, int seq_len) {
  ModelOptions options;
  options.config.vocab = kVocab, options.config.padded_vocab = 16;
  options.batch_size = batch_size, options.seq_len = seq_len;
  return options;
}

struct Tokens {
  std::vector<int32_t> inputs, targets;
  explicit Tokens(size_t count) : inputs(count, 3), targets(count, 4) {}
  Batch as(int batch_size, int seq_len) const { return {batch_size, seq_len, inputs, targets}; }
};

} // namespace

TEST_CASE("a batch up to the size that the model was made for is fine, and ignored targets are") {
  const ModelOptions options = made_for(2, 5);
  Tokens tokens(10);
  tokens.inputs[0] = 0, tokens.inputs[9] = kVocab - 1;
  tokens.targets[3] = kIgnoredTarget;
  CHECK_NOTHROW(check_batch(tokens.as(2, 5), options));
  CHECK_NOTHROW(check_batch(Tokens(3).as(1, 3), options));
}

TEST_CASE("another shape is a mistake in the program") {
  const ModelOptions options = made_for(2, 5);
  const auto refused = [&](const Tokens& tokens, int batch_size, int seq_len) {
    CHECK_THROWS_AS(check_batch(tokens.as(batch_size, seq_len), options), std::invalid_argument);
  };
  refused(Tokens(15), 3, 5);
  refused(Tokens(12), 2, 6);
  refused(Tokens(0), 0, 5);
  refused(Tokens(0), 2, 0);
  refused(Tokens(10), -2, -5);
  refused(Tokens(9), 2, 5);
  Tokens uneven(10);
  uneven.targets.pop_back();
  refused(uneven, 2, 5);
}

TEST_CASE("a token outside the vocabulary is an error in the data, in the padding as well") {
  const ModelOptions options = made_for(2, 5);
  for (const int32_t foreign : {kVocab, 15, -1, -2, std::numeric_limits<int32_t>::min()}) {
    CAPTURE(foreign);
    Tokens tokens(10);
    tokens.inputs[9] = foreign;
    const Error error = expect_error([&] { check_batch(tokens.as(2, 5), options); });
    CHECK(error.code() == ExitCode::data);
    CHECK(mentions(error, "token id " + std::to_string(foreign) + " is outside the vocabulary of 11"));
    if (foreign == kIgnoredTarget) continue;
    Tokens targets(10);
    targets.targets[0] = foreign;
    CHECK(expect_error([&] { check_batch(targets.as(2, 5), options); }).code() == ExitCode::data);
  }
}
