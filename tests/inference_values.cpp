// What tests/e2e/test_generate.py compares with transformers, as raw floats on standard output.
//
//   inference_values logits MODEL PREFILLED TOKEN...       (1 + decoded, vocab): of the prompt, then of each token more
//   inference_values probabilities TEMPERATURE TOP_K TOP_P MIN_P PENALTY TOKEN... < logits
//                                                          (vocab): zero where a filter has taken a token out
#include <cstdio>
#include <iostream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "engine/system/program.h"
#include "engine/text/sampling.h"
#include "tools/common/inference_model.h"

namespace {

using namespace gpt2;

std::vector<int32_t> tokens_from(const std::vector<std::string>& words, size_t first) {
  std::vector<int32_t> tokens;
  for (size_t i = first; i < words.size(); ++i) tokens.push_back(std::stoi(words[i]));
  return tokens;
}

void put(const std::vector<float>& values) { std::fwrite(values.data(), sizeof(float), values.size(), stdout); }

void logits(const std::vector<std::string>& words) {
  InferenceOptions options;
  options.device = DeviceKind::cpu;
  const InferenceModel inference = open_inference_model(options, *open_weights(words.at(1), ""));
  const auto prefilled = static_cast<size_t>(std::stoi(words.at(2)));
  const std::vector<int32_t> tokens = tokens_from(words, 3);
  // The second of three rows; the others are shorter.
  const auto decoder = inference.model->make_decoder(3, inference.model->config().seq_len);
  const auto vocab = static_cast<size_t>(inference.model->config().vocab);
  std::vector<float> all(3 * vocab);
  const std::span<const int32_t> text = tokens;
  const std::vector<RowTokens> prompts{{0, text.first(1)}, {1, text.first(prefilled)}, {2, text.first(prefilled / 2)}};
  const auto put_second = [&] {
    put(std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(vocab),
                           all.begin() + static_cast<std::ptrdiff_t>(2 * vocab)));
  };
  decoder->prefill(prompts, all);
  put_second();
  for (size_t i = prefilled; i < tokens.size(); ++i) {
    decoder->decode(std::vector<RowToken>{{2, 0}, {1, tokens[i]}, {0, tokens[i]}}, all);
    put_second();
  }
}

void probabilities(const std::vector<std::string>& words) {
  const SamplingSettings settings{.temperature = std::stof(words.at(1)),
                                  .top_k = std::stoi(words.at(2)),
                                  .top_p = std::stof(words.at(3)),
                                  .min_p = std::stof(words.at(4)),
                                  .repetition_penalty = std::stof(words.at(5))};
  const std::string bytes{std::istreambuf_iterator<char>(std::cin), {}};
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(values.data()));
  penalize_repetition(values, tokens_from(words, 6), settings.repetition_penalty);
  const std::vector<TokenWeight> kept = candidates(values, settings);
  const double total =
      std::accumulate(kept.begin(), kept.end(), 0.0, [](double sum, const TokenWeight& c) { return sum + c.weight; });
  std::vector<float> shares(values.size());
  for (const auto& [token, weight] : kept) shares[static_cast<size_t>(token)] = static_cast<float>(weight / total);
  put(shares);
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_program([&] {
    const std::vector<std::string> words(argv + 1, argv + argc);
    words.at(0) == "logits" ? logits(words) : probabilities(words);
    return ExitCode::done;
  });
}
