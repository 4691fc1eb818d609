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
  app.option_defaults()->group("Model")->always_capture_default();
  app.add_option("model", o.source, kModelHelp)->required();
  app.add_option("--device", arguments.device, "where to run")->check(one_of({"auto", "cuda", "cpu"}));
  app.add_option("--precision", arguments.precision, "auto: bf16 on a GPU, fp32 on the CPU")
      ->check(one_of({"auto", "bf16", "fp32"}));
  app.add_option("--threads", o.threads, "threads of the CPU engine; 0: all cores")->check(number_in(0, 1024));
  add_hf_cache(app, o.hf_cache);
  add_tokenizer(app, arguments.tokenizer);
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
