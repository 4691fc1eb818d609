// The CPU engine against a double-precision reference and against itself.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/expect_error.h"
#include "tests/gpt2_reference.h"
#include "tests/tiny_gpt2.h"

using namespace gpt2;
using namespace gpt2::testing;

TEST_CASE("a model for inference reads a training model's state and gives its losses and logits, in less memory") {
  for (const ModelOptions& options : {tiny_options(), with_fp8(tiny_options())}) {
    const auto trained = make_cpu_model(options);
    TokenBatch batch(4, 5, 11, 21);
    step(*trained, batch.view);
    ModelOptions reading = options;
    reading.purpose = Purpose::inference;
    const auto reader = make_cpu_model(reading);
    MemoryState state = saved(*trained);
    reader->load_state(state);
    std::vector<LossSum> expected(4), actual(4);
    trained->evaluate(batch.view, expected);
    reader->evaluate(batch.view, actual);
    for (size_t row = 0; row < expected.size(); ++row) {
      CHECK(actual[row].sum == expected[row].sum);
      CHECK(actual[row].tokens == expected[row].tokens);
    }
    CHECK_THROWS_AS(reader->micro_step(batch.view, 0, 1), std::logic_error);
    const auto bytes = [](const Model& model) {
      int64_t total = 0;
      for (const MemoryLine& line : model.memory_report()) total += line.bytes;
      return total;
    };
    CHECK(bytes(*reader) < bytes(*trained));
  }
}

TEST_CASE("weights alone leave the optimizer and the FP8 recipe as new") {
  const auto trained = make_cpu_model(with_fp8(tiny_options())), other = make_cpu_model(with_fp8(tiny_options()));
  TokenBatch batch(4, 5, 11, 21);
  step(*trained, batch.view);
  step(*other, batch.view);
  MemoryState state = saved(*trained);
  other->load_weights(state);
  const MemoryState loaded = saved(*other);
  for (const auto& [name, tensor] : loaded.floats) {
    if (name.starts_with("params/")) CHECK(tensor.values == state.floats.at(name).values);
    if (name.starts_with("adam_")) CHECK(std::ranges::all_of(tensor.values, [](float x) { return x == 0; }));
  }
  CHECK(loaded.ints.at("adam_step") == 0);
  CHECK(loaded.ints.at("fp8/calibration_due") == 1);
}

TEST_CASE("loss and every gradient agree with central differences in double precision") {
  const int B = 2, T = 5;
  const auto model = make_cpu_model(tiny_options(B));
  randomize_parameters(*model, 0.3);
  TokenBatch batch(B, T, model->config().vocab, 1);
  batch.targets[3] = kIgnoredTarget;

  const ReferenceGPT2 reference(model->config(), model->parameters());
  std::vector<double> flat = flat_parameters(*model);
  const double loss_sum = reference.loss_sum(flat, batch.inputs, batch.targets, B, T);
  model->micro_step(batch.view, 0, 1);
  const LossSum evaluated = evaluate(*model, batch.view);
  CHECK(evaluated.tokens == B * T - 1);
  CHECK(evaluated.sum == doctest::Approx(loss_sum).epsilon(1e-6));

  const double h = 1e-4;
  for (const ParameterTensor& tensor : model->parameters().tensors()) {
    const NamedTensor gradient = model->read_tensor(tensor, TensorKind::gradient);
    double largest = 0, worst = 0;
    for (size_t i = 0; i < gradient.values.size(); ++i) {
      double& value = flat[static_cast<size_t>(tensor.offset) + i];
      const double kept = value;
      value = kept + h;
      const double above = reference.loss_sum(flat, batch.inputs, batch.targets, B, T);
      value = kept - h;
      const double below = reference.loss_sum(flat, batch.inputs, batch.targets, B, T);
      value = kept;
      const double expected = (above - below) / (2 * h);
      largest = std::max(largest, std::abs(expected));
      // Absolute where the true gradient is zero: the key bias, wte's padding.
      const double allowed = 1e-5 + 1e-4 * std::abs(expected);
      worst = std::max(worst, std::abs(gradient.values[i] - expected) / allowed);
    }
    CAPTURE(tensor.name);
    CHECK(worst < 1.0);
    CHECK(largest > 1e-2); // the comparison says something
  }
}

TEST_CASE("the gradient of the padded vocabulary is exactly zero") {
  const auto model = make_cpu_model(tiny_options());
  TokenBatch batch(4, 5, model->config().vocab, 2);
  model->micro_step(batch.view, 0, 1);
  const NamedTensor wte = model->read_tensor(model->parameters().find("wte.weight"), TensorKind::gradient);
  for (size_t i = static_cast<size_t>(11 * 16); i < wte.values.size(); ++i) CHECK(wte.values[i] == 0.0f);
}

TEST_CASE("logits for sampling are those of the reference, at every length") {
  const auto model = make_cpu_model(tiny_options());
  randomize_parameters(*model, 0.3);
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5};
  const ReferenceGPT2 reference(model->config(), model->parameters());
  const auto expected = reference.sequence_logits(flat_parameters(*model), tokens);
  for (size_t length = 1; length <= tokens.size(); ++length) {
    std::vector<float> logits(11);
    model->next_token_logits(std::span(tokens).first(length), logits);
    for (size_t v = 0; v < logits.size(); ++v) {
      CHECK(logits[v] == doctest::Approx(expected[length - 1][v]).epsilon(1e-4).scale(1));
    }
  }
}

TEST_CASE("two micro-steps of two sequences are one of four") {
  const auto whole = make_cpu_model(tiny_options(4)), parts = make_cpu_model(tiny_options(2));
  TokenBatch batch(4, 5, 11, 3);
  batch.targets[0] = kIgnoredTarget; // micro-batches of unequal weight
  whole->micro_step(batch.view, 0, 1);
  for (int i = 0; i < 2; ++i) {
    const size_t begin = static_cast<size_t>(10 * i);
    parts->micro_step({.batch_size = 2,
                       .seq_len = 5,
                       .inputs = std::span(batch.inputs).subspan(begin, 10),
                       .targets = std::span(batch.targets).subspan(begin, 10)},
                      i, 2);
  }
  const auto expected = all(*whole, TensorKind::gradient), actual = all(*parts, TensorKind::gradient);
  for (size_t t = 0; t < expected.size(); ++t) {
    for (size_t i = 0; i < expected[t].values.size(); ++i) {
      REQUIRE(actual[t].values[i] == doctest::Approx(expected[t].values[i]).epsilon(1e-4).scale(0.1));
    }
  }
  whole->update(settings(1e-3f));
  parts->update(settings(1e-3f));
  CHECK(parts->step_result().tokens == 19);
  CHECK(parts->step_result().loss == doctest::Approx(whole->step_result().loss).epsilon(1e-6));
  CHECK(parts->step_result().grad_norm == doctest::Approx(whole->step_result().grad_norm).epsilon(1e-5));
}

TEST_CASE("the loss of a fresh model is that of a uniform guess, and it falls") {
  const auto model = make_cpu_model(tiny_options());
  TokenBatch batch(4, 5, 11, 4);
  const StepResult first = step(*model, batch.view);
  CHECK(first.loss == doctest::Approx(std::log(11.0)).epsilon(0.02));
  CHECK(first.verdict == Verdict::applied);
  CHECK(first.adam_step == 1);
  StepResult last;
  for (int i = 0; i < 60; ++i) last = step(*model, batch.view);
  CHECK(last.loss < 1.0f);
  CHECK(last.adam_step == 61);
}

TEST_CASE("an ignored target has no loss and no gradient") {
  const auto model = make_cpu_model(tiny_options(1));
  randomize_parameters(*model, 0.3);
  TokenBatch batch(1, 5, 11, 5);
  for (size_t t = 0; t < 4; ++t) batch.targets[t] = kIgnoredTarget;
  model->micro_step(batch.view, 0, 1);
  const auto all_five = all(*model, TensorKind::gradient);
  CHECK(evaluate(*model, batch.view).tokens == 1);

  batch.targets[4] = kIgnoredTarget;
  model->micro_step(batch.view, 0, 1);
  for (const NamedTensor& tensor : all(*model, TensorKind::gradient)) {
    for (const float value : tensor.values) REQUIRE(value == 0.0f);
  }
  CHECK(evaluate(*model, batch.view).tokens == 0);
  CHECK(evaluate(*model, batch.view).sum == 0.0);
  CHECK_FALSE(same_bits(all_five[0].values,
                        model->read_tensor(model->parameters().find("wte.weight"), TensorKind::gradient).values));
}

TEST_CASE("a saved model goes on bit for bit") {
  for (const ModelOptions& options :
       {tiny_options(), with_fp8(tiny_options()), with_fp8(tiny_options(), Fp8FormatChoice::e5m2)}) {
    const auto first = make_cpu_model(options);
    TokenBatch batches[] = {{4, 5, 11, 11}, {4, 5, 11, 12}, {4, 5, 11, 13}};
    for (const TokenBatch& batch : batches) step(*first, batch.view);
    MemoryState state = saved(*first);
    CHECK(state.floats.at("params/h.1.mlp.c_fc.weight").shape == std::vector<int64_t>{64, 16});
    CHECK(state.floats.at("adam_v/ln_f.bias").shape == std::vector<int64_t>{16});
    CHECK(state.ints.at("adam_step") == 3);

    ModelOptions other = options;
    other.seed += 1;
    const auto second = make_cpu_model(other);
    CHECK_FALSE(same_parameters(*first, *second));
    second->load_state(state);
    CHECK(saved(*second) == state);
    for (const TokenBatch& batch : batches) {
      const StepResult a = step(*first, batch.view), b = step(*second, batch.view);
      CHECK(a.loss == b.loss);
      CHECK(a.grad_norm == b.grad_norm);
    }
    CHECK(saved(*first) == saved(*second));
  }
}

TEST_CASE("a checkpoint of another model is refused and changes nothing") {
  ModelOptions wide = tiny_options();
  wide.config.channels = 32;
  MemoryState foreign = saved(*make_cpu_model(wide));
  const auto model = make_cpu_model(tiny_options());
  const MemoryState before = saved(*model);
  const Error error = expect_error([&] { model->load_state(foreign); });
  CHECK(error.code() == ExitCode::checkpoint);
  CHECK(mentions(error, "wte.weight is (16, 32), expected (16, 16)"));
  CHECK(saved(*model) == before);
}

TEST_CASE("what does not fit is refused") {
  const auto model = make_cpu_model(tiny_options(2));
  TokenBatch too_many(3, 5, 11, 71), outside(2, 5, 11, 72);
  CHECK_THROWS_AS(model->micro_step(too_many.view, 0, 1), std::invalid_argument);
  outside.inputs[4] = 11; // a row of the padding, but no token
  CHECK_THROWS_AS(model->micro_step(outside.view, 0, 1), Error);
  outside.inputs[4] = 0;
  outside.targets[9] = -2;
  CHECK_THROWS_AS(evaluate(*model, outside.view), Error);

  ModelOptions bf16 = tiny_options();
  bf16.precision = Precision::bf16;
  CHECK_THROWS_AS(make_cpu_model(bf16), Error);
  ModelOptions long_sequences = tiny_options();
  long_sequences.seq_len = 6; // the model has 5 positions
  CHECK_THROWS_AS(make_cpu_model(long_sequences), Error);
}

TEST_CASE("memory is reported by purpose") {
  const auto model = make_cpu_model(with_fp8(tiny_options()));
  int64_t total = 0;
  for (const MemoryLine& line : model->memory_report()) total += line.bytes;
  CHECK(model->memory_report()[0].bytes == model->parameters().size() * 4);
  CHECK(total > 5 * model->parameters().size() * 4);
}
