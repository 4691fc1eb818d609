// Candidates in batches: every loss is that of its own row, whatever stands beside it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/text/task_scores.h"
#include "tests/expect_error.h"
#include "tools/evaluate/last_words.h"

using namespace gpt2;

namespace {

constexpr int kWindow = 80; // more than one granule of lengths, less than the longest text

double cost(int32_t input, int32_t target, int position) { return input + 3.0 * target + 0.25 * position; }

// A token costs what itself, the one before and its place say: a row that is shifted or mixed up shows.
class CountingModel : public EvaluableModel {
 public:
  const GPT2Config& config() const override { return config_; }

  void evaluate(const Batch& batch, std::span<LossSum> rows) override {
    CHECK(batch.seq_len <= kWindow);
    CHECK(batch.batch_size <= 4);
    rows_seen += batch.batch_size;
    padding_seen += batch.tokens();
    for (int b = 0; b < batch.batch_size; ++b) {
      rows[static_cast<size_t>(b)] = {};
      for (int t = 0; t < batch.seq_len; ++t) {
        const auto at = static_cast<size_t>(b * batch.seq_len + t);
        if (batch.targets[at] == kIgnoredTarget) continue;
        rows[static_cast<size_t>(b)].sum += cost(batch.inputs[at], batch.targets[at], t);
        rows[static_cast<size_t>(b)].tokens += 1;
      }
    }
  }

  // After token t comes t + 1.
  void next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) override {
    std::ranges::fill(logits, 0.0f);
    logits[static_cast<size_t>(tokens.back() + 1)] = 1;
  }

  int rows_seen = 0;
  int64_t padding_seen = 0;

 private:
  GPT2Config config_{.seq_len = kWindow};
};

double expected_loss(const Candidate& candidate) {
  const int inputs = std::min(kWindow, static_cast<int>(candidate.tokens.size()) - 1);
  const auto tokens = std::span(candidate.tokens).last(static_cast<size_t>(inputs) + 1);
  double sum = 0;
  for (int t = inputs - candidate.counted; t < inputs; ++t)
    sum += cost(tokens[static_cast<size_t>(t)], tokens[static_cast<size_t>(t) + 1], t);
  return sum;
}

std::vector<Task> mixed_tasks() {
  std::vector<Task> tasks;
  int next = 1;
  for (int i = 0; i < 7; ++i) {
    Task task;
    for (int c = 0; c < 3; ++c) {
      Candidate candidate;
      for (int t = 0; t < 2 + (10 * i + 22 * c) % 120; ++t) candidate.tokens.push_back(next = (next * 7 + 3) % 101);
      candidate.counted = 1 + (i + c) % std::min(5, static_cast<int>(candidate.tokens.size()) - 1);
      candidate.bytes = 10 + c;
      task.candidates.push_back(candidate);
    }
    task.right = i % 3;
    tasks.push_back(task);
  }
  return tasks;
}

ScoringOptions rows_of_four() {
  ScoringOptions options;
  options.batch_size = 4;
  options.window = kWindow;
  return options;
}

} // namespace

TEST_CASE("every candidate gets the loss of its own counted tokens, long texts without their beginning") {
  const std::vector<Task> tasks = mixed_tasks();
  CountingModel model;
  RankGroup alone;
  const auto losses = task_losses(model, tasks, alone, rows_of_four());
  REQUIRE(losses);
  REQUIRE(losses->size() == tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i)
    for (size_t c = 0; c < 3; ++c) CHECK((*losses)[i][c] == expected_loss(tasks[i].candidates[c]));
  CHECK(model.rows_seen == 21);
  CHECK(model.padding_seen < 21 * kWindow); // short rows are not padded to the longest of all
}

TEST_CASE("a request to stop ends it without scores; an ending that is longer than the window is refused") {
  std::vector<Task> tasks = mixed_tasks();
  CountingModel model;
  RankGroup alone;
  ScoringOptions options = rows_of_four();
  options.stop = [&] { return model.rows_seen >= 8; };
  CHECK_FALSE(task_losses(model, tasks, alone, options));
  CHECK(model.rows_seen == 8);
  tasks[3].candidates[1].tokens.assign(60, 1);
  tasks[3].candidates[1].counted = kWindow + 1;
  const Error error = expect_error([&] { task_losses(model, tasks, alone, rows_of_four()); });
  CHECK(error.code() == ExitCode::data);
}

TEST_CASE("three ways to compare endings, and the first of equals") {
  Task task;
  task.candidates = {{.tokens = {}, .counted = 1, .bytes = 40},
                     {.tokens = {}, .counted = 4, .bytes = 8},
                     {.tokens = {}, .counted = 2, .bytes = 8}};
  const TaskLosses losses = {
      {2.0, 4.0, 3.0}, {2.0, 4.0, 3.0}, {2.0, 4.0, 3.0}}; // per token 2, 1, 1.5; per byte .05, .5, .375
  std::vector<Task> tasks(3, task);
  tasks[1].right = 1, tasks[2].right = 2;
  const Accuracy shares = accuracy(tasks, losses);
  CHECK(shares.tasks == 3);
  CHECK(shares.summed == doctest::Approx(1.0 / 3));    // chooses 0, right once
  CHECK(shares.per_token == doctest::Approx(1.0 / 3)); // chooses 1
  CHECK(shares.per_byte == doctest::Approx(1.0 / 3));  // chooses 0
  CHECK(chosen(std::vector<double>{2, 1, 1}) == 1);
  CHECK(chosen(std::vector<double>{2, std::nan(""), 1}) == -1);
  CHECK(standard_error(0.5, 100) == doctest::Approx(0.05));
}

TEST_CASE("last words count as known if they are surely the likeliest, or if the model writes them") {
  CountingModel model;
  const auto word = [](std::vector<int32_t> tokens) {
    return Task{.candidates = {{.tokens = std::move(tokens), .counted = 2, .bytes = 4}}, .right = 0};
  };
  const std::vector<Task> tasks = {word({5, 6, 7}), word({5, 6, 9}), word({5, 9, 9}), word({1, 50, 60})};
  const LastWords words = last_words(model, tasks, {{2.0}, {2.0}, {2.0}, {0.6}});
  CHECK(words.accuracy == 0.5); // the first is written, the last is likelier than one half
  CHECK(words.perplexity == doctest::Approx(std::exp(6.6 / 4)));
}
