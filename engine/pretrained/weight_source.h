// Pretrained weights: GPT-2 from Hugging Face, from llm.c, or from a checkpoint without its optimizer state. Names and
// layout are those of checkpoints ("params/h.3.attn.c_attn.weight", matrices (out, in)); rows of wte that pad the
// vocabulary are zero. A NaN or infinite value is an Error(checkpoint) that names file and tensor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/state.h"

namespace gpt2 {

class WeightSource : public StateReader {
 public:
  const GPT2Config& config() const { return config_; } // of the stored model
  const std::string& path() const { return path_; }
  const std::vector<std::string>& notes() const { return notes_; } // warnings, one line each

  // Uses the first seq_len rows of the position table. Throws Error(usage) if it has fewer.
  void use_positions(int seq_len);

  bool has(const std::string& name) const override;
  std::vector<int64_t> shape(const std::string& name) override;
  void read_floats(const std::string& name, std::span<float> values) override;
  void read_range(const std::string& name, int64_t begin, std::span<float> values) override;
  int64_t read_int(const std::string& name) override;      // throws: weights hold no integers
  std::string read_text(const std::string& name) override; // throws

 protected:
  explicit WeightSource(std::string path) : path_(std::move(path)) {}
  // Elements of one tensor, without padded rows; `name` lacks "params/".
  virtual void fetch(const std::string& name, int64_t begin, std::span<float> values) = 0;
  virtual std::string file_of(const std::string& /*name*/) const { return path_; } // of a tensor
  void expect_finite(const std::string& name, std::span<const float> values) const;

  std::string path_;
  GPT2Config config_;
  std::vector<std::string> notes_;
};

// PATH: a folder with config.json and model.safetensors (or its shards and their index), a .safetensors file, llm.c's
// gpt2_124M.bin, a checkpoint (all forms of --resume); or a model of Hugging Face's hub (gpt2,
// openai-community/gpt2-medium) in `hf_cache`. Empty hf_cache: the default of Hugging Face's tools ($HF_HUB_CACHE,
// $HF_HOME/hub, ~/.cache/huggingface/hub). Throws Error(checkpoint).
std::unique_ptr<WeightSource> open_weights(const std::string& path_or_name, const std::string& hf_cache);

std::unique_ptr<WeightSource> open_hugging_face(const std::string& file_or_folder);
std::unique_ptr<WeightSource> open_llmc(const std::string& file);
std::unique_ptr<WeightSource> open_checkpoint_weights(const std::string& checkpoint);

} // namespace gpt2
