#include "engine/model/model.h"

namespace gpt2 {

std::unique_ptr<Decoder> EvaluableModel::make_decoder(int rows, int positions) {
  return make_recomputing_decoder(*this, rows, positions);
}

LossSum evaluate(EvaluableModel& model, const Batch& batch) {
  std::vector<LossSum> rows(static_cast<size_t>(batch.batch_size));
  model.evaluate(batch, rows);
  LossSum total;
  for (const LossSum& row : rows) {
    total.sum += row.sum;
    total.tokens += row.tokens;
  }
  return total;
}

int64_t device_bytes(const std::vector<MemoryLine>& lines) {
  int64_t bytes = 0;
  for (const MemoryLine& line : lines) bytes += line.pinned_host ? 0 : line.bytes;
  return bytes;
}

} // namespace gpt2
