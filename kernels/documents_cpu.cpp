#include "kernels/documents.h"

namespace gpt2 {

void find_documents(Cpu&, const FindDocuments& op) {
#pragma omp parallel for schedule(static)
  for (int b = 0; b < op.B; ++b) {
    const int64_t row = static_cast<int64_t>(b) * op.T;
    for (int t = 0, begin = 0; t < op.T; ++t) {
      if (op.tokens[row + t] == op.separator) begin = t;
      op.begin[row + t] = begin;
      if (op.positions) op.positions[row + t] = t - begin;
    }
    for (int t = op.T - 1, end = op.T; t >= 0; --t) {
      op.end[row + t] = end;
      if (op.tokens[row + t] == op.separator) end = t;
    }
  }
}

} // namespace gpt2
