#include "engine/cuda/cuda_ranks.h"

#include <cuda_bf16.h>

#include <algorithm>

namespace gpt2 {

CudaRanks::CudaRanks(RankGroup& group, CudaStream& compute, const SharingOptions& sharing, const ParameterTable& table,
                     const CudaBuffers& b)
    : compute_(compute),
      sharing_(sharing),
      table_(table),
      b_(b),
      cuda_(compute.device,
            CudaStream::Priority::high), // other ranks wait for the data, and GEMMs leave few SMs free
      communicator_(group, cuda_,
                    sharing.grad_exchange == GradExchange::bf16 ? table.largest_bucket() / group.ranks() : 0),
      arrived_(table.buckets().size()),
      segments_(2 * table.tensors().size() * sizeof(Segment)) {
  if (!sharing.shard_optimizer) return;
  std::vector<Segment> segments;
  for (const ParameterTensor& tensor : table.tensors()) {
    if (tensor.cols > 0) continue;
    longest_ = std::max(longest_, tensor.count());
    for (const OwnedSlice& slice : table.shard(group.rank())) {
      const TensorSlice segment = slice_of(tensor, slice);
      if (segment.count == 0) continue;
      segments.push_back(
          {.from = segment.at, .to = b.vectors_at.at(tensor.offset) + segment.begin, .count = segment.count});
    }
  }
  owned_segments_ = static_cast<int>(segments.size());
  for (const ParameterTensor& tensor : table.tensors()) {
    if (tensor.cols > 0) continue;
    segments.push_back({.from = b.vectors_at.at(tensor.offset), .to = tensor.offset, .count = tensor.count()});
  }
  vector_segments_ = static_cast<int>(segments.size()) - owned_segments_;
  copy_to_device(cuda_.stream, reinterpret_cast<Segment*>(segments_.data()), std::span<const Segment>(segments));
}

void CudaRanks::after_compute() {
  reached_.record(compute_.stream);
  reached_.hold(cuda_.stream);
}

// ---- gradients ----

void CudaRanks::reduce(int bucket) {
  const Bucket& all = table_.buckets()[static_cast<size_t>(bucket)];
  const int64_t part = all.count / communicator_.ranks();
  float* const grad = b_.grad + all.offset;
  after_compute();
  const auto recorded = span("reduce " + std::to_string(bucket));
  if (!sharded() && sharing_.grad_exchange == GradExchange::fp32) return communicator_.all_reduce_sum(grad, all.count);
  communicator_.reduce_scatter(grad, part, sharing_.grad_exchange);
  if (!sharded()) communicator_.all_gather(grad, part * static_cast<int64_t>(sizeof(float)));
}

void CudaRanks::join() {
  done_.record(cuda_.stream);
  done_.hold(compute_.stream);
}

// ---- between norm and verdict ----

void CudaRanks::all_reduce_sum(StepSums* sums) {
  after_compute();
  communicator_.all_reduce_sum(&sums->loss, sizeof(StepSums) / sizeof(double));
  join();
}

void CudaRanks::all_reduce_max(uint32_t* amaxes, int64_t count) {
  after_compute();
  communicator_.all_reduce_max(amaxes, count);
  join();
}

// ---- Muon ----

void CudaRanks::gather_blocks(bf16* flat) {
  after_compute();
  const auto recorded = span("gather updates");
  for (size_t index = 1; index + 1 < table_.buckets().size(); ++index) {
    const Bucket& bucket = table_.buckets()[index];
    communicator_.all_gather(flat + bucket.offset,
                             bucket.count / communicator_.ranks() * static_cast<int64_t>(sizeof(bf16)));
  }
  join();
}

void CudaRanks::gather(void* buffer, int64_t bytes) {
  after_compute();
  const auto recorded = span("gather orthogonalized updates");
  communicator_.all_gather(buffer, bytes);
  join();
}

void CudaRanks::all_reduce_sum(UpdateSquares* updates) {
  after_compute();
  communicator_.all_reduce_sum(&updates->matrices, sizeof(UpdateSquares) / sizeof(double));
  join();
}

// ---- weights ----

void CudaRanks::begin_gather() { after_compute(); }

// Each vector has one owner, or two where a slice ends within it; the other ranks add zeros.
void CudaRanks::gather_vectors() {
  const auto recorded = span("gather vectors");
  auto* const segments = reinterpret_cast<const Segment*>(segments_.data());
  CUDA_CHECK(cudaMemsetAsync(b_.vectors, 0, static_cast<size_t>(b_.vectors_count) * sizeof(float), cuda_.stream));
  copy_segments(
      cuda_,
      CopySegments<float>{
          .out = b_.vectors, .in = b_.master, .segments = segments, .count = owned_segments_, .longest = longest_});
  communicator_.all_reduce_sum(b_.vectors, b_.vectors_count);
  copy_segments(cuda_, CopySegments<bf16>{.out = b_.weights,
                                          .in = b_.vectors,
                                          .segments = segments + owned_segments_,
                                          .count = vector_segments_,
                                          .longest = longest_});
}

void CudaRanks::gather_weights(const Bucket& bucket) {
  const auto recorded = span("gather BF16");
  communicator_.all_gather(b_.weights + bucket.offset,
                           bucket.count / communicator_.ranks() * static_cast<int64_t>(sizeof(bf16)));
}

void CudaRanks::gather_fp8_weights(const Bucket& bucket) {
  const auto recorded = span("gather E4M3");
  communicator_.all_gather(b_.fp8.weights + bucket.offset, bucket.count / communicator_.ranks());
}

void CudaRanks::record_arrival(int bucket) { arrived_[static_cast<size_t>(bucket)].record(cuda_.stream); }
void CudaRanks::await(int bucket) {
  if (sharded()) arrived_[static_cast<size_t>(bucket)].hold_across_graphs(compute_.stream);
}
void CudaRanks::await_all() {
  if (!sharded()) return;
  for (const Event& event : arrived_) event.hold_across_graphs(compute_.stream);
}

void CudaRanks::wait_for_stream() {
  done_.record(cuda_.stream);
  communicator_.wait(done_, done_);
}

// ---- this rank's time without waiting for others ----

void CudaRanks::begin_own_work() { own_begin_.record_across_graphs(compute_.stream); }
void CudaRanks::end_own_work() { own_end_.record_across_graphs(compute_.stream); }

} // namespace gpt2
