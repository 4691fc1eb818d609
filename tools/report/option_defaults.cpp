#include "tools/report/option_defaults.h"

#include "engine/options/option_fields.h"

namespace gpt2 {

std::vector<OptionDefault> option_defaults() {
  std::vector<OptionDefault> out;
  for (const OptionField& field : option_fields())
    if (!field.not_stored) out.push_back({field.name, field.group, field.toml({})});
  return out;
}

} // namespace gpt2
