// The connections between rank 0 and every other rank (a star), and the thread that serves them: messages, heartbeats,
// ended connections, stalls, goodbyes. Only the main thread calls the public functions.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/rendezvous/heartbeat.h"
#include "engine/rendezvous/join_options.h"
#include "engine/rendezvous/rendezvous.h"

namespace gpt2 {

class ControlChannel {
 public:
  ControlChannel(int rank, Rendezvous joined, const JoinOptions& options);
  ~ControlChannel(); // sends goodbye; waits at most 5 s for the answer
  ControlChannel(const ControlChannel&) = delete;

  const std::vector<Member>& members() const { return members_; }
  std::string name_of(int rank) const { return to_string(rank, members_[static_cast<size_t>(rank)]); }

  void send(int rank, std::string_view message);
  std::string receive(int rank); // the next message of that rank; throws after a failure

  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  void check() const { // throws Error(communication) after a failure
    if (has_failed()) throw_failure();
  }
  Activity enter(Activity activity); // returns the previous one
  void announce_failure(const std::string& reason);
  [[noreturn]] void fail(const std::string& what); // an error found by this rank; sent to the others

 private:
  struct Peer {
    Connection connection; // closed: none, or ended
    std::deque<std::string> messages = {};
    bool has_left = false; // goodbye or farewell received
  };

  void serve();
  void wait_for_work();
  void serve_peer(int rank);
  void handle(int rank, Frame& frame);
  void connection_lost(int rank, const char* why);
  void send_heartbeats();
  void check_stalls();
  void record_failure(const std::string& what);
  bool is_done_leaving() const;
  void wake() const;
  [[noreturn]] void throw_failure() const;
  bool leads() const { return rank_ == 0; }

  const int rank_;
  const JoinOptions options_;
  const Clock::duration beat_interval_;
  const std::vector<Member> members_;
  const int exceptions_at_start_;
  const Socket wake_; // eventfd: the main thread has queued a frame

  std::atomic<bool> failed_ = false;

  mutable std::mutex mutex_; // guards the members below; the thread releases it while it polls
  std::condition_variable changed_;
  std::vector<Peer> peers_; // by rank
  Watchdog watchdog_;
  std::string failure_;
  Activity activity_ = Activity::computing; // of the main thread
  Clock::time_point active_since_, failed_at_, next_beat_, last_round_, leave_until_;
  bool leaving_ = false, ended_process_ = false;
  std::thread thread_; // last: uses all members above
};

} // namespace gpt2
