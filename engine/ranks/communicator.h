// Collectives over large buffers. Every rank makes the same calls in the same order and gets the same bits. On a GPU a
// call enqueues work on the communicator's stream and returns before it is done.
//
// Buffers are divided evenly: `count` (or `bytes`) is one rank's part, and part r begins at r * count.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/ranks/rank_group.h"

namespace gpt2 {

// Type of gradients on the wire. bf16: half the bytes; each value is rounded once and summed in FP32 by the receiver,
// whereas a BF16 ring all-reduce rounds at every hop.
enum class GradExchange { fp32, bf16 };

// How ranks divide the optimizer update.
struct SharingOptions {
  bool shard_optimizer = true; // ZeRO-1: a rank owns a slice of master weights and moments; else all of them
  GradExchange grad_exchange = GradExchange::fp32;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // This rank's part becomes the sum over ranks; the other parts are undefined afterwards.
  virtual void reduce_scatter(float* buffer, int64_t count, GradExchange exchange) = 0;
  // Every rank's part comes from its owner.
  virtual void all_gather(void* buffer, int64_t bytes) = 0;

  virtual void all_reduce_sum(float* values, int64_t count) = 0;
  virtual void all_reduce_sum(double* values, int64_t count) = 0;
  virtual void all_reduce_max(uint32_t* values, int64_t count) = 0; // also for non-negative floats, by their bits

  // Total time of the calls above. Step time minus this is the rank's own work, which identifies a straggler. 0 if
  // calls are asynchronous.
  virtual double waited_seconds() const { return 0; }
};

// For host memory: a TCP connection per pair of ranks; values are summed in rank order. `group` must outlive it.
std::unique_ptr<Communicator> make_socket_communicator(RankGroup& group);

// One process: all calls are no-ops.
std::unique_ptr<Communicator> make_single_communicator();

} // namespace gpt2
