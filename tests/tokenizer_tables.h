// GPT-2's BPE tables are installed, not part of the tree: without them the cases that need them say so and pass.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "engine/text/tokenizer.h"

namespace gpt2 {

inline const Tokenizer* tokenizer() {
  static const std::string folder = Tokenizer::find_folder("");
  static const auto loaded = folder.empty() ? nullptr : std::make_unique<Tokenizer>(folder);
  if (!loaded) MESSAGE("skipped: no tokenizer tables; run tools/install_deps.sh");
  return loaded.get();
}

} // namespace gpt2
