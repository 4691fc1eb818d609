// Sums and copies of large buffers over all ranks. Every rank makes the same calls in the same order, and every rank
// ends with the same bits. On a GPU a call is work on the communicator's stream, and returns before it is done.
//
// Buffers are cut evenly: `count` (or `bytes`) is one rank's part, and part r begins at r * count.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/ranks/rank_group.h"

namespace gpt2 {

// How gradients travel. bf16: half the bytes, each part rounded once and added in FP32 where it arrives; the sums of a
// BF16 ring would be rounded at every hop.
enum class GradExchange { fp32, bf16 };

// How the ranks of a job divide the work of an update.
struct SharingOptions {
  bool shard_optimizer = true; // ZeRO-1: a rank owns a slice of master weights and moments; else each holds all of them
  GradExchange grad_exchange = GradExchange::fp32;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // This rank's part becomes the sum of all ranks' values of it; the other parts are undefined afterwards.
  virtual void reduce_scatter(float* buffer, int64_t count, GradExchange exchange) = 0;
  // Every rank's part comes from its owner.
  virtual void all_gather(void* buffer, int64_t bytes) = 0;

  virtual void all_reduce_sum(float* values, int64_t count) = 0;
  virtual void all_reduce_sum(double* values, int64_t count) = 0;
  virtual void all_reduce_max(uint32_t* values, int64_t count) = 0; // also non-negative floats, by their bits

  // Of the calling thread in the calls above, since the start: what a step took beyond it was this rank's own work, so
  // that a straggler can be told from those who wait for it. 0 where calls return before they are done.
  virtual double waited_seconds() const { return 0; }
};

// For buffers in host memory: each pair of ranks has a TCP connection, and parts are added in the order of ranks.
// `group` must outlive it.
std::unique_ptr<Communicator> make_socket_communicator(RankGroup& group);

// One process: nothing to add, nothing to fetch.
std::unique_ptr<Communicator> make_single_communicator();

} // namespace gpt2
