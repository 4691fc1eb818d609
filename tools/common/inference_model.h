// A model to read, not to train: whatever --init_from takes, on the GPU or on the CPU engine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/exchange/weight_source.h"

namespace gpt2 {

struct InferenceOptions {
  std::string source;   // as open_weights takes it: a checkpoint, a folder of Hugging Face's, llm.c's .bin, a name
  std::string hf_cache; // "": where Hugging Face's tools keep it
  DeviceKind device = DeviceKind::automatic;
  PrecisionChoice precision = PrecisionChoice::automatic; // BF16 on a GPU, FP32 on the CPU
  int threads = 0;                                        // of the CPU engine; 0: all cores
  int batch_size = 1;                                     // rows at a time
  int longest = 0;                                        // tokens of a row; 0: all the positions that the model has
};

struct InferenceModel {
  std::unique_ptr<Backend> backend; // must outlive the model
  std::unique_ptr<Model> model;
  std::string description;        // "124.4M parameters of runs/x, FP32 on the CPU"
  std::vector<std::string> notes; // one line for each thing that is not as one might expect
};

// Throws Error(usage) for rows longer than the model's positions, Error(device) for a GPU that is not there,
// Error(checkpoint) for a source that is not there or not to be used.
InferenceModel open_inference_model(const InferenceOptions& options);
// The same of a source that has been opened already, for who must know its shape before.
InferenceModel open_inference_model(const InferenceOptions& options, WeightSource& weights);

} // namespace gpt2
