#include "engine/model/state.h"

#include "engine/base/error.h"

namespace gpt2 {

int64_t read_count(StateReader& reader, const std::string& name, int64_t most) {
  const int64_t count = reader.read_int(name);
  if (count >= 0 && count <= most) return count;
  throw Error(ExitCode::checkpoint, "the checkpoint's " + name + " is " + std::to_string(count) +
                                        ", not between 0 and " + std::to_string(most));
}

} // namespace gpt2
