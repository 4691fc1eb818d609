#include "engine/model/arena.h"

namespace gpt2 {

void Arena::note(const char* purpose, int64_t bytes) {
  auto found = std::ranges::find(report_, purpose, &MemoryLine::purpose);
  if (found == report_.end()) found = report_.insert(report_.end(), {purpose, 0});
  found->bytes += bytes;
}

} // namespace gpt2
