// The options that all inference tools share: model, device, precision, tokenizer.
#pragma once

#include <memory>
#include <string>

#include "engine/text/tokenizer.h"
#include "tools/common/inference_model.h"
#include "tools/common/tool_arguments.h"

namespace gpt2 {

struct InferenceArguments {
  InferenceOptions options;
  std::string device = "auto", precision = "auto", tokenizer;
};

inline void add_inference_arguments(CLI::App& app, InferenceArguments& arguments) {
  InferenceOptions& o = arguments.options;
  app.add_option("model", o.source,
                 "a checkpoint (its folder, its run's folder, CHECKPOINT_DIR/latest), a Hugging Face folder or cached "
                 "model name, an llm.c .bin file")
      ->required();
  app.option_defaults()->always_capture_default();
  app.add_option("--device", arguments.device, "auto, cuda or cpu")->check(CLI::IsMember({"auto", "cuda", "cpu"}));
  app.add_option("--precision", arguments.precision, "auto (bf16 on a GPU, fp32 on the CPU), bf16 or fp32")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}));
  app.add_option("--threads", o.threads, "threads of the CPU engine; 0: all cores")->check(CLI::Range(0, 1024));
  app.add_option("--hf_cache", o.hf_cache, "Hugging Face cache for model names; default: that of its own tools");
  app.add_option("--tokenizer", arguments.tokenizer,
                 "folder with GPT-2's encoder.json and vocab.bpe; default: $GPT2_TOKENIZER, else .deps/gpt2_bpe");
}

// Call after parsing.
inline InferenceOptions inference_options(const InferenceArguments& arguments) {
  InferenceOptions options = arguments.options;
  options.device = arguments.device == "cuda"  ? DeviceKind::cuda
                   : arguments.device == "cpu" ? DeviceKind::cpu
                                               : DeviceKind::automatic;
  options.precision = arguments.precision == "bf16"   ? PrecisionChoice::bf16
                      : arguments.precision == "fp32" ? PrecisionChoice::fp32
                                                      : PrecisionChoice::automatic;
  return options;
}

} // namespace gpt2
