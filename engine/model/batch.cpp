#include "engine/model/batch.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "engine/base/error.h"
#include "engine/model/model_options.h"

namespace gpt2 {

void check_batch(const Batch& batch, const ModelOptions& options) {
  const auto tokens = static_cast<size_t>(std::max<int64_t>(batch.tokens(), 0));
  if (batch.batch_size < 1 || batch.batch_size > options.batch_size || batch.seq_len < 1 ||
      batch.seq_len > options.seq_len || batch.inputs.size() != tokens || batch.targets.size() != tokens) {
    throw std::invalid_argument("a batch of " + std::to_string(batch.batch_size) + " x " +
                                std::to_string(batch.seq_len) + " tokens does not fit a model made for " +
                                std::to_string(options.batch_size) + " x " + std::to_string(options.seq_len));
  }
  const auto check_token = [vocab = options.config.vocab](int32_t token) {
    if (token >= 0 && token < vocab) return;
    throw Error(ExitCode::data,
                "token id " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(vocab),
                "tokenize the data with GPT-2's tokenizer (bin/prepare_data)");
  };
  for (const int32_t token : batch.inputs) check_token(token);
  for (const int32_t target : batch.targets) {
    if (target != kIgnoredTarget) check_token(target);
  }
}

} // namespace gpt2
