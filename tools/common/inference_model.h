// Opens a model for inference, from any source that --init_from takes, on the GPU or the CPU engine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/pretrained/weight_source.h"

namespace gpt2 {

struct InferenceOptions {
  std::string source;   // for open_weights: a checkpoint, a Hugging Face folder or model name, an llm.c .bin file
  std::string hf_cache; // "": Hugging Face's default cache
  DeviceKind device = DeviceKind::automatic;
  PrecisionChoice precision = PrecisionChoice::automatic; // BF16 on a GPU, FP32 on the CPU
  int threads = 0;                                        // CPU engine; 0: all cores
  int batch_size = 1;                                     // rows per forward pass
  int longest = 0;                                        // tokens per row; 0: all positions of the model
  DocumentOptions documents = {};
};

struct InferenceModel {
  std::unique_ptr<Backend> backend; // must outlive the model
  std::unique_ptr<Model> model;
  std::string description;        // "124.4M parameters of runs/x, FP32 on the CPU"
  std::vector<std::string> notes; // one line for each fallback
};

// Throws Error(usage) if rows exceed the model's positions, Error(device) if a required GPU is missing,
// Error(checkpoint) if the source is unusable.
InferenceModel open_inference_model(const InferenceOptions& options, WeightSource& weights);

} // namespace gpt2
