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
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/rendezvous/join_options.h"
#include "engine/rendezvous/launcher.h"

namespace gpt2 {

class RankGroup {
 public:
  RankGroup();  // one process: no thread, no sockets
  ~RankGroup(); // sends goodbye: the others then do not report a death
  RankGroup(const RankGroup&) = delete;

  // Returns when all ranks have joined. Throws Error(communication) that names the missing ranks.
  static std::unique_ptr<RankGroup> join(const Launch& launch, const JoinOptions& options);

  int rank() const;
  int ranks() const;
  bool alone() const { return ranks() == 1; }
  bool leads() const { return rank() == 0; } // prints, logs, locks, decides
  int local_rank() const;                    // on this host, from 0: chooses the GPU
  int local_ranks() const;
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
    Scope(RankGroup& group, int state);
    RankGroup& group_;
    int before_;
  };
  [[nodiscard]] Scope waiting(); // for other ranks, or for a device that waits for them
  [[nodiscard]] Scope busy();    // work of this rank alone: samples, the last file of a checkpoint
  // Before this process ends with an error: the other ranks report it with its reason, and end.
  void announce_failure(const std::string& reason);

  // ---- connections between all pairs, for SocketCommunicator; the first call is collective ----
  // File descriptors of connected, non-blocking sockets, by rank; -1 for this rank. Owned by the group.
  std::span<const int> mesh();

 private:
  struct Impl;
  explicit RankGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace gpt2
