// The processes that train one model together, once they have found each other: who they are, small messages between
// them, and a watch over those that die or stall. The gradients themselves travel by a Communicator.
//
// Rank 0 holds one TCP connection to every other rank. A thread of each process reads them: heartbeats, messages, and
// the end of a connection, which is how the death of a process shows within milliseconds. Once something has failed,
// every waiting call below throws Error(communication) that names the rank; should the main thread be stuck elsewhere
// (in a device that waits for a dead peer), the thread prints that line itself and ends the process with exit code 7.
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
  RankGroup();  // one process: every call answers at once, there is no thread and no socket
  ~RankGroup(); // says goodbye, so that the others do not take the end for a death
  RankGroup(const RankGroup&) = delete;

  // All ranks of a launch; returns when all have joined. Throws Error(communication) that names the missing ones.
  static std::unique_ptr<RankGroup> join(const Launch& launch, const JoinOptions& options);

  int rank() const;
  int ranks() const;
  bool alone() const { return ranks() == 1; }
  bool leads() const { return rank() == 0; } // prints, logs, locks, decides
  int local_rank() const;                    // on this host, from 0: chooses the GPU
  int local_ranks() const;
  std::string name_of(int rank) const; // "rank 3 (node7, process 4711)"

  // ---- small messages: every rank calls the same ones in the same order ----
  std::vector<std::string> gather(const std::string& mine);     // by rank on rank 0; empty elsewhere
  std::string broadcast(const std::string& of_rank_0);          // what rank 0 gave; what others give is ignored
  std::vector<std::string> all_gather(const std::string& mine); // by rank, on every rank
  void sum(std::span<double> values); // in place, in the order of ranks: the same bits everywhere
  void barrier();

  // ---- the watch ----
  // Throws Error(communication) once a rank is known to be dead, stalled or failed. Cheap: one atomic load.
  void check() const;
  // The same, if that becomes known within the limit: a broken connection shows before its reason does.
  void check_within(std::chrono::milliseconds limit) const;
  // What the calling (main) thread is at, for the others' patience. A rank that neither waits nor is busy, and for
  // which others have waited longer than the limit, has stalled.
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
  [[nodiscard]] Scope waiting(); // for other ranks, or for a device that does
  [[nodiscard]] Scope busy();    // with work that others need not do: samples, the last file of a checkpoint
  // This process is about to end because of an error of its own: the others name it and its reason, and end too.
  void announce_failure(const std::string& reason);

  // ---- connections between all pairs, for SocketCommunicator: made at the first call, which every rank makes ----
  // [rank] = file descriptor of a connected, non-blocking socket; -1 for this rank itself. Owned by the group.
  std::span<const int> mesh();

 private:
  struct Impl;
  explicit RankGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace gpt2
