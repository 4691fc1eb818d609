// GPT-2's loss in double precision, written independently of the engine: loops, no kernels, no batching tricks. Slow
// and obvious, so that its numerical derivative can be trusted.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/parameters.h"

namespace gpt2::testing {

class ReferenceGPT2 {
 public:
  ReferenceGPT2(const GPT2Config& config, const ParameterTable& table) : config_(config), table_(table) {}

  // Sum over the targets that are not ignored, of -log softmax(logits)[target].
  double loss_sum(const std::vector<double>& flat, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  int B, int T) const {
    double sum = 0;
    for (int b = 0; b < B; ++b) {
      const auto logits = sequence_logits(flat, inputs.subspan(static_cast<size_t>(b * T), static_cast<size_t>(T)));
      for (int t = 0; t < T; ++t) {
        const int32_t target = targets[static_cast<size_t>(b * T + t)];
        if (target < 0) continue;
        double total = 0;
        for (const double logit : logits[static_cast<size_t>(t)]) total += std::exp(logit);
        sum += std::log(total) - logits[static_cast<size_t>(t)][static_cast<size_t>(target)];
      }
    }
    return sum;
  }

  // One row of `vocab` logits for each position.
  std::vector<std::vector<double>> sequence_logits(const std::vector<double>& flat,
                                                   std::span<const int32_t> tokens) const {
    const size_t C = static_cast<size_t>(config_.channels), T = tokens.size();
    const double* wte = tensor(flat, "wte.weight");
    const double* wpe = tensor(flat, "wpe.weight");
    Rows x(T, Row(C));
    for (size_t t = 0; t < T; ++t) {
      for (size_t c = 0; c < C; ++c) x[t][c] = wte[static_cast<size_t>(tokens[t]) * C + c] + wpe[t * C + c];
    }
    for (int layer = 0; layer < config_.layers; ++layer) {
      const std::string h = "h." + std::to_string(layer) + ".";
      add(x,
          linear(flat, h + "attn.c_proj", attention(linear(flat, h + "attn.c_attn", layernorm(flat, h + "ln_1", x)))));
      add(x, linear(flat, h + "mlp.c_proj", gelu(linear(flat, h + "mlp.c_fc", layernorm(flat, h + "ln_2", x)))));
    }
    const Rows last = layernorm(flat, "ln_f", x);
    Rows logits(T, Row(static_cast<size_t>(config_.vocab)));
    for (size_t t = 0; t < T; ++t) {
      for (size_t v = 0; v < logits[t].size(); ++v) {
        for (size_t c = 0; c < C; ++c) logits[t][v] += last[t][c] * wte[v * C + c];
      }
    }
    return logits;
  }

 private:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  const double* tensor(const std::vector<double>& flat, const std::string& name) const {
    return flat.data() + table_.find(name).offset;
  }

  static void add(Rows& x, const Rows& branch) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t c = 0; c < x[t].size(); ++c) x[t][c] += branch[t][c];
    }
  }

  Rows layernorm(const std::vector<double>& flat, const std::string& name, const Rows& x) const {
    const double* weight = tensor(flat, name + ".weight");
    const double* bias = tensor(flat, name + ".bias");
    Rows out = x;
    for (Row& row : out) {
      const double n = static_cast<double>(row.size());
      double mean = 0, variance = 0;
      for (const double value : row) mean += value / n;
      for (const double value : row) variance += (value - mean) * (value - mean) / n;
      for (size_t c = 0; c < row.size(); ++c)
        row[c] = (row[c] - mean) / std::sqrt(variance + 1e-5) * weight[c] + bias[c];
    }
    return out;
  }

  Rows linear(const std::vector<double>& flat, const std::string& name, const Rows& x) const {
    const ParameterTensor& shape = table_.find(name + ".weight"); // (out, in)
    const double* weight = flat.data() + shape.offset;
    const double* bias = tensor(flat, name + ".bias");
    const size_t in = static_cast<size_t>(shape.cols), out = static_cast<size_t>(shape.rows);
    Rows y(x.size(), Row(out));
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t o = 0; o < out; ++o) {
        y[t][o] = bias[o];
        for (size_t i = 0; i < in; ++i) y[t][o] += x[t][i] * weight[o * in + i];
      }
    }
    return y;
  }

  static Rows gelu(Rows x) {
    for (Row& row : x) {
      for (double& v : row) v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    }
    return x;
  }

  // qkv (T, 3 C): queries, keys, values, each split into heads.
  Rows attention(const Rows& qkv) const {
    const size_t C = static_cast<size_t>(config_.channels), heads = static_cast<size_t>(config_.heads), HS = C / heads;
    Rows out(qkv.size(), Row(C));
    for (size_t head = 0; head < heads; ++head) {
      for (size_t t = 0; t < qkv.size(); ++t) {
        Row weights(t + 1);
        double total = 0;
        for (size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (size_t i = 0; i < HS; ++i) score += qkv[t][head * HS + i] * qkv[s][C + head * HS + i];
          total += weights[s] = std::exp(score / std::sqrt(static_cast<double>(HS)));
        }
        for (size_t s = 0; s <= t; ++s) {
          for (size_t i = 0; i < HS; ++i) out[t][head * HS + i] += weights[s] / total * qkv[s][2 * C + head * HS + i];
        }
      }
    }
    return out;
  }

  const GPT2Config& config_;
  const ParameterTable& table_;
};

} // namespace gpt2::testing
