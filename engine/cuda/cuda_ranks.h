// One rank's collectives on a separate stream, overlapped with the compute stream: gradients are reduced as backward
// completes them, then sums and amaxes, and weights are gathered as the next forward pass needs them.
#pragma once

#include <vector>

#include "engine/cuda/cuda_buffers.h"
#include "engine/model/parameters.h"
#include "engine/nccl/communicator.h"
#include "engine/ranks/communicator.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/timeline.h"
#include "kernels/optimizer.h"
#include "kernels/ranks.h"

namespace gpt2 {

class CudaRanks {
 public:
  // `compute`, `table` and `b` must outlive it.
  CudaRanks(RankGroup& group, CudaStream& compute, const SharingOptions& sharing, const ParameterTable& table,
            const CudaBuffers& b);

  CudaStream& stream() { return cuda_; } // of the collectives
  bool sharded() const { return sharing_.shard_optimizer; }

  // ---- gradients ----
  void reduce(int bucket); // sums a bucket that the compute stream has completed; sharded: this rank's part alone
  void join();             // the compute stream waits for all collectives issued so far

  // ---- between norm and verdict ----
  void all_reduce_sum(StepSums* sums);
  void all_reduce_max(uint32_t* amaxes, int64_t count);

  // ---- Muon: the compute stream waits for the result ----
  void gather_blocks(bf16* flat);           // every rank's slices of the blocks, in the parameter table's layout
  void gather(void* buffer, int64_t bytes); // `bytes` per rank
  void all_reduce_sum(UpdateSquares* updates);

  // ---- weights ----
  void begin_gather();                           // waits for the update on the compute stream
  void gather_vectors();                         // LayerNorm vectors and GEMM biases: FP32, then the biases in BF16
  void gather_weights(const Bucket& bucket);     // BF16
  void gather_fp8_weights(const Bucket& bucket); // E4M3
  void record_arrival(int bucket);
  void await(int bucket); // the compute stream waits for the bucket's arrival; also inside a graph
  void await_all();

  void record(Timeline* timeline) { timeline_ = timeline; } // null: stop

  // ---- this rank's time without waiting for others ----
  void begin_own_work();
  void end_own_work();
  double own_seconds() const { return own_end_.seconds_since(own_begin_); } // of the last micro-step
  // Blocks the host. `alone`: this rank's own work contains no collective, so waiting counts from its end; false under
  // current scaling, where ranks agree on scales within it.
  void wait(const Event& event, bool alone) { communicator_.wait(alone ? own_end_ : event, event); }
  void wait_for_stream(); // blocks the host until this stream is idle
  void abort_if_lost() noexcept { communicator_.abort_if_lost(); }

 private:
  Timeline::Span span(const std::string& name) { return {timeline_, cuda_.stream, "ranks", name}; }
  void after_compute(); // this stream waits for the compute stream's work so far

  CudaStream& compute_;
  const SharingOptions sharing_;
  const ParameterTable& table_;
  const CudaBuffers& b_;
  CudaStream cuda_;
  NcclCommunicator communicator_;
  std::vector<Event> arrived_; // by bucket
  Timeline* timeline_ = nullptr;
  Event reached_, done_;
  Event own_begin_{Event::Kind::timed}, own_end_{Event::Kind::timed};
  DeviceMemory segments_; // of Segment: master -> vectors (owned parts), then vectors -> weights (all)
  int owned_segments_ = 0, vector_segments_ = 0;
  int64_t longest_ = 0; // elements of the longest vector
};

} // namespace gpt2
