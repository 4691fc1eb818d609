#pragma once

#include <cstdint>

namespace gpt2 {

constexpr int32_t kIgnoredTarget = -1; // no loss, no gradient at this position

} // namespace gpt2
