// Weights that others have made, as a model takes them: GPT-2's of Hugging Face, of llm.c, or of one of our checkpoints
// without its optimizer state. Names and layout are ours ("params/h.3.attn.c_attn.weight", matrices (out, in)); rows of
// wte that only pad the vocabulary are zero. A value that is NaN or infinite is an Error(checkpoint) that names its
// file and tensor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/state.h"

namespace gpt2 {

class WeightSource : public StateReader {
 public:
  const GPT2Config& config() const { return config_; } // of the model that the weights are of
  const std::string& path() const { return path_; }
  const std::vector<std::string>& notes() const { return notes_; } // one line for what the file does not say

  // The position table is cut to so many rows from here on; longer ones than it has are refused.
  void use_positions(int seq_len);

  bool has(const std::string& name) const override;
  std::vector<int64_t> shape(const std::string& name) override;
  void read_floats(const std::string& name, std::span<float> values) override;
  void read_range(const std::string& name, int64_t begin, std::span<float> values) override;
  int64_t read_int(const std::string& name) override;      // there are none
  std::string read_text(const std::string& name) override; // nor any of these

 protected:
  explicit WeightSource(std::string path) : path_(std::move(path)) {}
  // A range of one of our tensors that the source has: rows of padding are asked of nobody.
  virtual void fetch(const std::string& name, int64_t begin, std::span<float> values) = 0;
  virtual std::string file_of(const std::string& /*name*/) const { return path_; } // that holds one of our tensors
  void expect_finite(const std::string& name, std::span<const float> values) const;

  std::string path_;
  GPT2Config config_;
  std::vector<std::string> notes_;
};

// PATH: a folder with config.json and model.safetensors (or its parts and their index), a .safetensors file, llm.c's
// gpt2_124M.bin, one of our checkpoints (all that --resume takes); or a name of Hugging Face's hub (gpt2,
// openai-community/gpt2-medium) that is in `hf_cache`; "": where its tools keep it ($HF_HUB_CACHE, $HF_HOME/hub,
// ~/.cache/huggingface/hub). Throws Error(checkpoint).
std::unique_ptr<WeightSource> open_weights(const std::string& path_or_name, const std::string& hf_cache);

std::unique_ptr<WeightSource> open_hugging_face(const std::string& file_or_folder);
std::unique_ptr<WeightSource> open_llmc(const std::string& file);
std::unique_ptr<WeightSource> open_checkpoint_weights(const std::string& checkpoint);

} // namespace gpt2
