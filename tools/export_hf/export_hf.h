// A model as transformers loads it: AutoModelForCausalLM.from_pretrained(FOLDER), and its tokenizer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/pretrained/safetensors.h"
#include "engine/pretrained/weight_source.h"

namespace gpt2 {

struct ExportOptions {
  std::string output;                 // the folder; appears whole or not at all
  bool overwrite = false;             // an earlier export may be there, with nothing else beside it
  WeightType type = WeightType::f32;  // f32 or bf16
  std::string tokenizer;              // folder with encoder.json and vocab.bpe; "": the model goes without one
  int64_t file_bytes = 5'000'000'000; // a larger model is cut into files of at most so many
  std::function<bool()> stop = [] { return false; }; // asked now and then
};

// The files that were written. Throws Error(usage) if `output` is in use, Error(disk) if it cannot be written,
// Error(stopped_early) if it was stopped.
std::vector<std::string> export_hugging_face(WeightSource& weights, const ExportOptions& options);

} // namespace gpt2
