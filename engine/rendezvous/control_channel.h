// The star of connections between rank 0 and the others once they have met, and the thread that serves it: messages,
// heartbeats, deaths, stalls and goodbyes. Every call here but those of the thread itself is made by one thread of the
// process, the main thread.
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
  ControlChannel(int rank, Meeting meeting, const JoinOptions& options);
  ~ControlChannel(); // says goodbye and waits, for seconds at most, until it is heard
  ControlChannel(const ControlChannel&) = delete;

  const std::vector<Member>& members() const { return members_; }

  void send(int rank, std::string_view message);
  std::string receive(int rank); // the next message of that rank; throws once something has failed

  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  void check() const { // throws Error(communication) once something has failed
    if (has_failed()) throw_failure();
  }
  Activity enter(Activity activity); // returns the one before
  void announce_failure(const std::string& reason);
  [[noreturn]] void fail(const std::string& what); // found by this rank: the others hear it too

 private:
  struct Peer {
    Connection connection; // closed: no connection, or it has ended
    std::deque<std::string> messages = {};
    bool has_left = false;  // it said goodbye
    bool may_close = false; // rank 0 has heard our goodbye
  };

  void serve();
  void wait_for_work();
  void serve_peer(int rank);
  void handle(int rank, Frame& frame);
  void lost(int rank, const char* why);
  void beat();
  void judge();
  void record_failure(const std::string& what);
  bool is_done_leaving() const;
  void wake() const;
  [[noreturn]] void throw_failure() const;
  std::string name_of(int rank) const { return to_string(rank, members_[static_cast<size_t>(rank)]); }
  bool leads() const { return rank_ == 0; }

  const int rank_;
  const JoinOptions options_;
  const Clock::duration beat_interval_;
  const std::vector<Member> members_;
  const int exceptions_at_start_;
  const Socket wake_; // an eventfd: somebody has queued something

  std::atomic<uint64_t> activity_; // Activity in the lowest two bits, above it since when, in ms of Clock
  std::atomic<bool> failed_ = false;

  mutable std::mutex mutex_; // guards all below; the thread holds it except while it polls
  std::condition_variable news_;
  std::vector<Peer> peers_; // by rank
  Watch watch_;
  std::string failure_;
  Clock::time_point failed_at_, next_beat_, last_round_, leave_until_;
  bool leaving_ = false, ended_process_ = false;
  std::thread thread_; // last: it uses all of the above
};

} // namespace gpt2
