// Writes a model and its tokenizer for transformers: GPT2LMHeadModel.from_pretrained(FOLDER).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/pretrained/safetensors.h"
#include "engine/pretrained/weight_source.h"

namespace gpt2 {

struct ExportOptions {
  std::string output;                                // folder; renamed into place when complete
  bool overwrite = false;                            // replace a folder that holds only an earlier export
  WeightType type = WeightType::f32;                 // f32 or bf16
  std::string tokenizer;                             // folder with encoder.json and vocab.bpe; "": none
  int64_t file_bytes = 5'000'000'000;                // limit per file; larger models are split
  std::function<bool()> stop = [] { return false; }; // polled
};

// Returns the files written. Throws Error(usage) if `output` is in use, Error(disk) if it cannot be written,
// Error(stopped_early) if stopped.
std::vector<std::string> export_hugging_face(WeightSource& weights, const ExportOptions& options);

} // namespace gpt2
