#include "tools/common/trainer_flags.h"

namespace gpt2 {

std::optional<CommandLine> parse_trainer_flags(const std::vector<std::string>& flags, const std::string& version) {
  std::vector<const char*> words{"train_gpt2_fp8"};
  for (const std::string& flag : flags) words.push_back(flag.c_str());
  return parse_options(static_cast<int>(words.size()), words.data(), version);
}

bool trains(const Options& options) {
  return !options.print_config && !options.list_checkpoints && !options.eval_only && !options.plan;
}

} // namespace gpt2
