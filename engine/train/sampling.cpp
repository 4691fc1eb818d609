#include "engine/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/data/sample_text.h"

namespace gpt2 {

int32_t choose_token(std::span<const float> logits, float temperature, int top_k, double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  const size_t kept = top_k > 0 ? std::min<size_t>(static_cast<size_t>(top_k), order.size()) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(temperature > 0 ? kept : 1), order.end(),
                    likelier);
  if (!(temperature > 0)) return order[0];

  std::vector<double> weights(kept);
  const double largest = logits[order[0]];
  for (size_t i = 0; i < kept; ++i) weights[i] = std::exp((logits[order[i]] - largest) / temperature);
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < kept; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[0]; // rounding left a crumb
}

std::vector<uint16_t> generate(EvaluableModel& model, std::vector<uint16_t> prompt, const SampleSettings& settings,
                               uint64_t stream, const std::function<bool()>& stop) {
  const Rng rng(settings.seed, stream);
  const auto window = static_cast<size_t>(model.config().seq_len);
  std::vector<float> logits(static_cast<size_t>(model.config().vocab));
  std::vector<int32_t> context{Tokenizer::kEndOfText}; // a document begins after this token
  context.insert(context.end(), prompt.begin(), prompt.end());
  for (int i = 0; i < settings.tokens && !stop(); ++i) {
    const size_t seen = std::min(window, context.size());
    model.next_token_logits(std::span<const int32_t>(context).last(seen), logits);
    const int32_t token =
        choose_token(logits, settings.temperature, settings.top_k, rng.uniform(static_cast<uint64_t>(i)));
    if (token == Tokenizer::kEndOfText) break;
    context.push_back(token);
    prompt.push_back(static_cast<uint16_t>(token));
  }
  return prompt;
}

TextCodec::TextCodec(const std::string& folder, bool built_in_sample) : built_in_sample_(built_in_sample) {
  if (!folder.empty()) tokenizer_ = std::make_unique<Tokenizer>(folder);
}

std::vector<uint16_t> TextCodec::encode(const std::string& text) const {
  if (text.empty()) return {};
  if (!tokenizer_) {
    throw Error(ExitCode::data, "--prompt needs GPT-2's BPE tables, and they are not installed",
                "run tools/install_deps.sh, or give --tokenizer DIR");
  }
  return tokenizer_->encode(text);
}

std::string TextCodec::decode(const std::vector<uint16_t>& tokens) const {
  return tokenizer_ ? tokenizer_->decode(tokens) : sample_decode(tokens);
}

} // namespace gpt2
