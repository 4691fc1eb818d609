// What a model is made with: shape, precision, optimizer, room for batches.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/enum_names.h"
#include "engine/model/config.h"
#include "engine/model/fp8_recipe.h"
#include "engine/model/parameters.h"

namespace gpt2 {

enum class Precision { fp32, bf16, fp8 };
constexpr auto names_of(Precision) { // in file names, options and checkpoints
  using enum Precision;
  return std::to_array<EnumName<Precision>>({{fp32, "fp32"}, {bf16, "bf16"}, {fp8, "fp8"}});
}
inline std::string to_string(Precision precision) { return name_of(precision); }

enum class Purpose {
  training,
  inference, // forward only: no gradients, no moments, no saved activations
};

enum class DocumentPositions { restart, absolute }; // counted from the document's first token, or the sequence's

// Attention within documents. A document begins with its separator token.
struct DocumentOptions {
  bool mask = false;
  DocumentPositions positions = DocumentPositions::restart;
  int32_t separator = 50256; // <|endoftext|>
};

struct ModelOptions {
  GPT2Config config;
  Precision precision = Precision::fp32;
  Purpose purpose = Purpose::training;
  Optimizer optimizer = Optimizer::adamw;
  InitProjections init_projections = InitProjections::normal;
  Fp8Options fp8;
  DocumentOptions documents;
  int batch_size = 4; // largest B of a micro-step
  int seq_len = 1024; // largest T
  uint64_t seed = 1337;
};

// Checks the shape, batch size and sequence length. Each engine adds its own constraints.
void validate(const ModelOptions& options);

} // namespace gpt2
