// An FP8 tensor by the name that people read.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "engine/model/fp8_recipe.h"

namespace gpt2::testing {

inline Fp8TensorName named(const std::string& text) { // "h.7/fc/grad", "lm_head/act"
  const int layer = text.starts_with("h.") ? std::atoi(text.c_str() + 2) : 0;
  for (const Fp8Site site : {Fp8Site::qkv, Fp8Site::proj, Fp8Site::fc, Fp8Site::fcproj, Fp8Site::lm_head}) {
    for (const Fp8Role role : {Fp8Role::act, Fp8Role::act_t, Fp8Role::weight, Fp8Role::grad}) {
      if (const Fp8TensorName name{layer, site, role}; name.text() == text) return name;
    }
  }
  throw std::invalid_argument(text);
}

} // namespace gpt2::testing
