#include "engine/model/batch_sizes_that_fit.h"

#include <algorithm>

namespace gpt2 {

std::vector<int> batch_sizes_that_fit(int target, int most, int64_t free_bytes,
                                      const std::function<int64_t(int)>& bytes_of) {
  const int64_t usable = free_bytes - bytes_to_leave(free_bytes);
  std::vector<int> fitting;
  for (int batch_size = std::min(target, most); batch_size >= 1; --batch_size) {
    if (target % batch_size == 0 && bytes_of(batch_size) <= usable) fitting.push_back(batch_size);
  }
  return fitting;
}

} // namespace gpt2
