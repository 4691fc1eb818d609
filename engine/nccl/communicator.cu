#include "engine/nccl/communicator.h"

#include <cuda_bf16.h>

#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "engine/nccl/library.h"
#include "kernels/cast.h"
#include "kernels/ranks.h"

namespace gpt2 {

namespace {

using namespace nccl;

constexpr auto kPoll = std::chrono::microseconds(50);

} // namespace

NcclVersion nccl_version() { return NcclLibrary::version(); }

// ---- construction and errors ----

NcclCommunicator::NcclCommunicator(RankGroup& group, CudaStream& cuda, int64_t largest_part)
    : group_(group), cuda_(cuda), nccl_(NcclLibrary::open()) {
  UniqueId id{};
  std::string failure;
  if (group.leads()) {
    const int result = nccl_.get_unique_id(&id);
    if (result != kSuccess) failure = nccl_.error_string(result);
  }
  const std::string answer = group.broadcast(failure.empty() ? std::string(id.bytes, sizeof id.bytes) : failure);
  if (answer.size() != sizeof id.bytes)
    throw Error(ExitCode::communication, "NCCL failed to start on rank 0: " + answer, "set NCCL_DEBUG=INFO to see why");
  std::memcpy(id.bytes, answer.data(), sizeof id.bytes);
  Config config;
  settle(nccl_.comm_init_rank_config(&comm_, group.ranks(), id, group.rank(), &config), "ncclCommInitRankConfig");
  if (largest_part == 0) return;
  const size_t bytes = static_cast<size_t>(largest_part) * static_cast<size_t>(ranks()) * sizeof(bf16);
  sent_ = std::make_unique<DeviceMemory>(bytes);
  received_ = std::make_unique<DeviceMemory>(bytes);
}

NcclCommunicator::~NcclCommunicator() {
  if (!comm_) return;
  try {
    group_.check();
    const bool unwinding = std::uncaught_exceptions() > 0; // peers may be inside a collective
    if (!unwinding) {
      settle(nccl_.comm_finalize(comm_), "ncclCommFinalize"); // collective: all peers are alive
      nccl_.comm_destroy(std::exchange(comm_, nullptr));
    }
  } catch (const Error&) {
  }
  abort(); // unless destroyed above
}

void NcclCommunicator::abort() noexcept {
  if (comm_) nccl_.comm_abort(std::exchange(comm_, nullptr));
}

void NcclCommunicator::abort_if_lost() noexcept {
  try {
    group_.check();
  } catch (const Error&) {
    abort();
  }
}

void NcclCommunicator::settle(int result, const char* what) {
  if (result == kSuccess) return;
  const auto waiting = group_.waiting();
  while (result == kInProgress) {
    group_.check();
    if (!comm_) break; // during ncclCommInit: no handle to query yet
    if (nccl_.comm_get_async_error(comm_, &result) != kSuccess) break;
    if (result == kInProgress) std::this_thread::sleep_for(kPoll);
  }
  if (result == kSuccess) return;
  const char* const detail = nccl_.last_error(comm_);
  throw Error(
      ExitCode::communication,
      std::string(what) + ": " + nccl_.error_string(result) + (detail && *detail ? std::string(": ") + detail : ""),
      "set NCCL_DEBUG=INFO to see why; docs/cluster.md lists the usual causes");
}

void NcclCommunicator::poll() {
  group_.check();
  int result = kSuccess;
  nccl_.comm_get_async_error(comm_, &result);
  if (result != kInProgress) settle(result, "NCCL");
  std::this_thread::sleep_for(kPoll);
}

void NcclCommunicator::wait(const Event& own, const Event& shared) {
  while (&own != &shared && !own.happened()) poll();
  const auto waiting = group_.waiting();
  while (!shared.happened()) poll();
}

// ---- collectives ----

void NcclCommunicator::reduce_scatter(float* buffer, int64_t count, GradExchange exchange) {
  if (exchange == GradExchange::bf16) return exchange_bf16(buffer, count);
  settle(nccl_.reduce_scatter(buffer, buffer + rank() * count, static_cast<size_t>(count), kFloat, kSum, comm_,
                              cuda_.stream),
         "ncclReduceScatter");
}

// Sends each part to its owner in BF16; owners sum in FP32. Each value is rounded once, for any number of ranks.
void NcclCommunicator::exchange_bf16(float* buffer, int64_t count) {
  auto* const sent = reinterpret_cast<bf16*>(sent_->data());
  auto* const received = reinterpret_cast<bf16*>(received_->data());
  cast_to_bf16(cuda_, {.out = sent, .in = buffer, .count = count * ranks()});
  settle(nccl_.group_start(), "ncclGroupStart");
  for (int peer = 0; peer < ranks(); ++peer) {
    nccl_.send(sent + peer * count, static_cast<size_t>(count), kBf16, peer, comm_, cuda_.stream);
    nccl_.receive(received + peer * count, static_cast<size_t>(count), kBf16, peer, comm_, cuda_.stream);
  }
  settle(nccl_.group_end(), "ncclGroupEnd");
  sum_over_ranks(cuda_, {.out = buffer + rank() * count, .parts = received, .ranks = ranks(), .count = count});
}

void NcclCommunicator::all_gather(void* buffer, int64_t bytes) {
  settle(nccl_.all_gather(static_cast<std::byte*>(buffer) + rank() * bytes, buffer, static_cast<size_t>(bytes), kUint8,
                          comm_, cuda_.stream),
         "ncclAllGather");
}

void NcclCommunicator::all_reduce_sum(float* values, int64_t count) {
  settle(nccl_.all_reduce(values, values, static_cast<size_t>(count), kFloat, kSum, comm_, cuda_.stream),
         "ncclAllReduce");
}

void NcclCommunicator::all_reduce_sum(double* values, int64_t count) {
  settle(nccl_.all_reduce(values, values, static_cast<size_t>(count), kDouble, kSum, comm_, cuda_.stream),
         "ncclAllReduce");
}

void NcclCommunicator::all_reduce_max(uint32_t* values, int64_t count) {
  settle(nccl_.all_reduce(values, values, static_cast<size_t>(count), kUint32, kMax, comm_, cuda_.stream),
         "ncclAllReduce");
}

} // namespace gpt2
