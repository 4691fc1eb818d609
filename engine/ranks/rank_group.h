// The ranks of a job after rendezvous: names, small messages, and a watchdog for ranks that die or stall. Gradients go
// through a Communicator.
//
// Rank 0 holds one TCP connection to every other rank. A thread of each process reads heartbeats and messages; the end
// of a connection shows the death of a process within milliseconds. After a failure every waiting call below throws
// Error(communication) that names the rank. If the main thread is blocked elsewhere (in a kernel that waits for a dead
// peer), the thread prints that line and ends the process with exit code 7.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/network/secret.h"
#include "engine/network/sockets.h"
#include "engine/rendezvous/join_options.h"
#include "engine/rendezvous/launcher.h"

namespace gpt2 {

class ControlChannel;
struct Rendezvous;
enum class Activity : uint8_t;

class RankGroup {
 public:
  RankGroup();  // one process: no thread, no sockets
  ~RankGroup(); // sends goodbye: the others then do not report a death
  RankGroup(const RankGroup&) = delete;

  // Returns when all ranks have joined. Throws Error(communication) that names the missing ranks.
  static std::unique_ptr<RankGroup> join(const Launch& launch, const JoinOptions& options);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  bool alone() const { return ranks_ == 1; }
  bool leads() const { return rank_ == 0; }      // prints, logs, locks, decides
  int local_rank() const { return local_rank_; } // on this host, from 0: chooses the GPU
  int local_ranks() const { return local_ranks_; }
  std::string name_of(int rank) const; // "rank 3 (node7, process 4711)"

  // ---- collectives over small messages ----
  std::vector<std::string> gather(const std::string& mine);     // by rank on rank 0; empty elsewhere
  std::string broadcast(const std::string& of_rank_0);          // the argument of rank 0
  std::vector<std::string> all_gather(const std::string& mine); // by rank, on every rank
  void sum(std::span<double> values);                           // in place, in rank order: the same bits on all ranks
  void barrier();

  // ---- watchdog ----
  // Throws Error(communication) if a rank is dead, stalled or failed. Cost: one atomic load.
  void check() const;
  // The same, waiting up to `limit`: a broken connection shows before its reason.
  void check_within(std::chrono::milliseconds limit) const;
  // Reports the state of the main thread to the watchdog. A rank that is neither waiting nor busy, and for which others
  // have waited longer than the limit, has stalled.
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    friend class RankGroup;
    Scope(RankGroup& group, Activity activity);
    RankGroup& group_;
    Activity before_;
  };
  [[nodiscard]] Scope waiting(); // for other ranks, or for a device that waits for them
  [[nodiscard]] Scope busy();    // work of this rank alone: samples, the last file of a checkpoint
  // Before this process ends with an error: the other ranks report it with its reason, and end.
  void announce_failure(const std::string& reason);

  // ---- connections between all pairs, for SocketCommunicator; the first call is collective ----
  // By rank; this rank's own is closed. Owned by the group.
  std::span<const Socket> mesh();

 private:
  // The first byte of a message names the call that sent it: detects ranks that make different calls.
  enum class Call : char { gather = 'g', broadcast = 'b', all_gather = 'a', sum = 's' };

  RankGroup(const Launch& launch, Rendezvous joined, const JoinOptions& options);
  std::vector<std::string> gather(Call call, std::string_view mine);
  std::string broadcast(Call call, std::string_view of_rank_0);
  std::string receive(Call call, int from);
  [[noreturn]] void fail_at(int from, const std::string& what); // an invalid message

  const int rank_ = 0, ranks_ = 1;
  int local_rank_ = 0, local_ranks_ = 1;
  const Key key_ = {};
  const bool on_one_host_ = true;
  std::unique_ptr<ControlChannel> channel_; // null: one process
  std::vector<Socket> mesh_;
};

} // namespace gpt2
