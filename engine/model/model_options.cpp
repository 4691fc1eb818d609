#include "engine/model/model_options.h"

#include "engine/base/error.h"

namespace gpt2 {

void validate(const ModelOptions& options) {
  validate(options.config);
  if (options.batch_size < 1) {
    throw Error(ExitCode::usage, "--batch_size " + std::to_string(options.batch_size) + " is out of range",
                "give --batch_size a number of sequences from 1 up");
  }
  if (options.seq_len < 1 || options.seq_len > options.config.seq_len) {
    throw Error(ExitCode::usage,
                "--seq_len " + std::to_string(options.seq_len) + " does not fit a model with " +
                    std::to_string(options.config.seq_len) + " positions",
                "give --seq_len a number of tokens from 1 to " + std::to_string(options.config.seq_len));
  }
}

} // namespace gpt2
