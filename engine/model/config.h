// The shape of a GPT-2: everything about the architecture, nothing about training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt2 {

struct GPT2Config {
  std::string name = "gpt2"; // as requested: "gpt2-medium", "d12"
  int layers = 12;           // L
  int heads = 12;            // NH
  int channels = 768;        // C, a multiple of NH
  int seq_len = 1024;        // T, rows of the position table
  int vocab = 50257;         // V, real tokens: softmax covers these
  int padded_vocab = 50304;  // Vp, rows of wte: a multiple of 128; the rest have zero gradient

  int head_dim() const { return channels / heads; } // HS
};

// Larger shapes are typing errors.
constexpr int kMaxModelLayers = 1000, kMaxModelChannels = 65536, kMaxSequenceLength = 1 << 20, kMaxVocabulary = 1 << 20;

// "nano" (for CPUs), "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", or "dN" by depth as in llm.c: d12, d24, d36 and
// d48 are GPT-2's four sizes, depths in between are interpolated, heads have 64 channels. Throws Error(usage) with the
// nearest name as a hint.
GPT2Config config_by_name(const std::string& name);
std::vector<std::string> config_names();

// `base` with another shape: --layers --heads --channels. A zero keeps the value of `base`; new channels without heads
// keep the channels per head of `base`. Validated.
GPT2Config with_shape(const GPT2Config& base, int layers, int heads, int channels);

// Throws Error(usage) for an invalid shape (zero, negative, channels not a multiple of heads, ...).
void validate(const GPT2Config& config);

std::string shape_text(const GPT2Config& config);  // "12 layers, 12 heads, 768 channels, sequences of 1024"
std::string blocks_text(const GPT2Config& config); // "12 layers, 12 heads, 768 channels"

int64_t parameter_count(const GPT2Config& config); // without the padding rows of wte

// A run's defaults, by model size.
struct ModelDefaults {
  int batch_size;        // sequences per micro-batch on the CPU
  int target_batch_size; // sequences per optimizer step
  float max_lr;
  float muon_lr, muon_adamw_lr; // --optimizer muon: the blocks' matrices, all other parameters
  int64_t warmup_steps;
  int64_t max_steps;
};
ModelDefaults defaults_for(const GPT2Config& config);

} // namespace gpt2
