#include "tools/evaluate/last_words.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gpt2 {
namespace {

// True if greedy decoding yields the counted tokens.
bool decodes_greedily(EvaluableModel& model, const Candidate& candidate, std::vector<float>& logits) {
  const auto window = static_cast<size_t>(model.config().seq_len);
  const std::span<const int32_t> tokens = candidate.tokens;
  for (size_t at = tokens.size() - static_cast<size_t>(candidate.counted); at < tokens.size(); ++at) {
    model.next_token_logits(tokens.first(at).last(std::min(at, window)), logits);
    if (std::ranges::max_element(logits) - logits.begin() != tokens[at]) return false;
  }
  return true;
}

} // namespace

double standard_error(double share, int64_t tasks) {
  return std::sqrt(share * (1 - share) / static_cast<double>(std::max<int64_t>(1, tasks)));
}

LastWords last_words(EvaluableModel& model, std::span<const Task> tasks, const TaskLosses& losses) {
  std::vector<float> logits(static_cast<size_t>(model.config().vocab));
  double nats = 0;
  int64_t right = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Candidate& word = tasks[i].candidates.front();
    nats += losses[i].front();
    // The word has probability above 1/2, so each of its tokens is the likeliest.
    right += losses[i].front() < std::numbers::ln2 || decodes_greedily(model, word, logits);
  }
  const auto count = static_cast<double>(std::max<size_t>(1, tasks.size()));
  return {.tasks = static_cast<int64_t>(tasks.size()),
          .perplexity = std::exp(nats / count),
          .accuracy = static_cast<double>(right) / count};
}

} // namespace gpt2
