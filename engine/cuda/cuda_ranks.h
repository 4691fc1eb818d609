// One rank's exchanges with the others: gradients out as backward completes them, sums and amaxes between, weights in
// as the next forward pass needs them. They run on a stream of their own, beside the compute stream.
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

  CudaStream& stream() { return cuda_; } // where weights arrive
  bool sharded() const { return sharing_.shard_optimizer; }

  // ---- gradients ----
  void reduce(int bucket); // complete on the compute stream: summed over ranks, this rank's part or all of it
  void join();             // the compute stream goes on when all that was asked for here is done

  // ---- between norm and verdict ----
  void add_up(StepSums* sums);
  void maximise(uint32_t* amaxes, int64_t count);

  // ---- Muon: the compute stream waits until they arrive ----
  void gather_blocks(bf16* flat);           // every rank's slices of the blocks, in the parameter table's layout
  void gather(void* buffer, int64_t bytes); // `bytes` of each rank
  void add_up(UpdateSquares* updates);

  // ---- weights ----
  void begin_sharing();                     // what the compute stream has updated may leave
  void share_vectors();                     // LayerNorm's vectors and the products' biases: FP32, then the biases' BF16
  void share_weights(const Bucket& bucket); // BF16
  void share_codes(const Bucket& bucket);   // E4M3
  void arrived(int bucket);                 // it is complete on this stream
  void await(int bucket);                   // the compute stream goes on when it has arrived; also inside a graph
  void await_all();

  void record(Timeline* timeline) { timeline_ = timeline; } // null: nothing

  // ---- this rank's own time ----
  void begin_own_work();
  void end_own_work();
  double own_seconds() const { return own_end_.seconds_since(own_begin_); } // of the last micro-step
  // The host waits. `alone`: until own work ends it waits for nobody else, as it does where scales are agreed on amid
  // it.
  void wait(const Event& event, bool alone) { communicator_.wait(alone ? own_end_ : event, event); }
  void wait_until_here(); // for all that was asked of this stream
  void abort_if_lost() noexcept { communicator_.abort_if_lost(); }

 private:
  Timeline::Span span(const std::string& name) { return {timeline_, cuda_.stream, "ranks", name}; }
  void after_compute(); // this stream goes on where the compute stream is now

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
  DeviceMemory segments_; // of Segment: owned parts of vectors in the master, then all vectors in the weights
  int owned_pieces_ = 0, all_pieces_ = 0;
  int64_t longest_ = 0; // vector
};

} // namespace gpt2
