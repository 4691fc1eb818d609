#include "engine/rendezvous/control_channel.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/base/error.h"
#include "engine/rendezvous/messages.h"
#include "engine/system/process.h"

namespace gpt2 {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLeaveTime(5000);  // for the answer to a goodbye
constexpr milliseconds kFlushTime(1000);  // to send a failure
constexpr milliseconds kLeavingRound(20); // poll timeout while leaving
constexpr const char* kHint = "read the last lines of that rank's output; docs/cluster.md explains each message";

} // namespace

ControlChannel::ControlChannel(int rank, Rendezvous joined, const JoinOptions& options)
    : rank_(rank),
      options_(options),
      beat_interval_(std::min<Clock::duration>(milliseconds(1000), options.stall / 6)),
      members_(std::move(joined.members)),
      exceptions_at_start_(std::uncaught_exceptions()),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      watchdog_(static_cast<int>(members_.size()), options.stall, Clock::now()) {
  for (Connection& connection : joined.connections) peers_.push_back({.connection = std::move(connection)});
  for (int other = 1; other < static_cast<int>(peers_.size()) && !leads(); ++other)
    watchdog_.leave(other); // rank 0 watches them
  active_since_ = next_beat_ = last_round_ = Clock::now();
  // Signals go to the main thread, whose system calls they must interrupt.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { serve(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ControlChannel::~ControlChannel() {
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  if (unwinding && !has_failed()) announce_failure("it ended with an error");
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    leave_until_ = Clock::now() + (has_failed() ? kFlushTime : kLeaveTime);
    for (Peer& peer : peers_) {
      if (!has_failed() && peer.connection.is_open()) peer.connection.queue(FrameType::goodbye, "");
    }
  }
  wake();
  thread_.join();
}

// ---- main thread ----

void ControlChannel::send(int rank, std::string_view message) {
  check();
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(rank)];
    const bool was_idle = !peer.connection.has_unsent();
    peer.connection.queue(FrameType::message, message);
    if (was_idle) peer.connection.flush(); // fast path: no thread switch
    if (!peer.connection.has_unsent()) return;
  }
  wake();
}

std::string ControlChannel::receive(int rank) {
  std::unique_lock lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>(rank)];
  changed_.wait(lock, [&] { return !peer.messages.empty() || peer.has_left || has_failed(); });
  if (peer.messages.empty()) { // messages before a failure are delivered: they may give the reason
    lock.unlock();
    fail(name_of(rank) + " ended while " + name_of(rank_) + " still waits for it");
  }
  std::string message = std::move(peer.messages.front());
  peer.messages.pop_front();
  return message;
}

Activity ControlChannel::enter(Activity activity) {
  const std::lock_guard lock(mutex_);
  active_since_ = Clock::now();
  return std::exchange(activity_, activity);
}

void ControlChannel::announce_failure(const std::string& reason) {
  std::unique_lock lock(mutex_);
  record_failure(name_of(rank_) + " failed: " + reason);
  // This process may end right after: wait until the kernel has accepted the frames.
  changed_.wait_until(lock, Clock::now() + kFlushTime, [&] {
    return std::none_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.connection.has_unsent(); });
  });
}

void ControlChannel::fail(const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    record_failure(what);
  }
  throw_failure();
}

void ControlChannel::throw_failure() const {
  const std::lock_guard lock(mutex_);
  throw Error(ExitCode::communication, failure_, kHint);
}

void ControlChannel::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.descriptor(), &one, sizeof one);
}

// ---- background thread ----

void ControlChannel::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (leaving_ && is_done_leaving()) return;
    lock.unlock();
    wait_for_work();
    lock.lock();
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) serve_peer(rank);
    send_heartbeats();
    check_stalls();
    changed_.notify_all();
    last_round_ = Clock::now();

    if (has_failed() && !leaving_ && !ended_process_ && Clock::now() > failed_at_ + options_.grace) {
      ended_process_ = true;
      const std::string line = "error: " + failure_ + " (" + kHint + ")";
      lock.unlock();
      if (!options_.end_process) exit_with_line(ExitCode::communication, line + "\n");
      options_.end_process(line);
      lock.lock();
    }
  }
}

// Only this thread opens and closes descriptors, so polling without the mutex is safe.
void ControlChannel::wait_for_work() {
  std::vector<pollfd> descriptors{{wake_.descriptor(), POLLIN, 0}};
  Clock::duration left;
  {
    const std::lock_guard lock(mutex_);
    left = leaving_ ? kLeavingRound : next_beat_ - Clock::now();
    for (const Peer& peer : peers_) {
      if (peer.connection.is_open()) descriptors.push_back(peer.connection.awaited());
    }
  }
  wait_for_any(descriptors, left);
  uint64_t ignored = 0;
  [[maybe_unused]] const ssize_t drained = ::read(wake_.descriptor(), &ignored, sizeof ignored);
}

void ControlChannel::serve_peer(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!peer.connection.is_open()) return;
  if (peer.connection.receive()) watchdog_.heard_from(rank, Clock::now());
  while (auto frame = peer.connection.next()) {
    handle(rank, *frame);
    if (!peer.connection.is_open()) return;
  }
  peer.connection.flush();
  if (peer.connection.ended()) connection_lost(rank, " died");
}

void ControlChannel::handle(int rank, Frame& frame) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  switch (frame.type) {
    case FrameType::message:
      peer.messages.push_back(std::move(frame.body));
      break;
    case FrameType::heartbeat: {
      const auto heartbeat = read_heartbeat(frame.body);
      if (!heartbeat) return connection_lost(rank, " sent a frame that cannot be read");
      watchdog_.heard_from(rank, heartbeat->activity, heartbeat->lasts, Clock::now());
      break;
    }
    case FrameType::failure:
    case FrameType::verdict:
      record_failure(frame.body);
      break;
    case FrameType::goodbye:
      peer.has_left = true;
      watchdog_.leave(rank);
      if (leads()) peer.connection.queue(FrameType::farewell, "");
      break;
    case FrameType::farewell:
      peer.has_left = true;
      break;
    default:
      connection_lost(rank, " sent a frame that cannot be read");
  }
}

// A failure, unless the rank has sent goodbye, or the job is ending.
void ControlChannel::connection_lost(int rank, const char* why) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.connection.close();
  if (!peer.has_left && !leaving_) record_failure(name_of(rank) + why);
}

void ControlChannel::send_heartbeats() {
  const Clock::time_point now = Clock::now();
  const auto lasts = std::chrono::duration_cast<milliseconds>(now - active_since_);
  watchdog_.heard_from(rank_, activity_, lasts, now);
  if (now < next_beat_) return;
  next_beat_ = now + beat_interval_;
  const std::string body = to_bytes(Heartbeat{activity_, lasts});
  for (Peer& peer : peers_) {
    if (!peer.connection.is_open() || peer.connection.has_unsent()) continue; // unsent bytes prove liveness too
    peer.connection.queue(FrameType::heartbeat, body);
    peer.connection.flush();
  }
}

void ControlChannel::check_stalls() {
  const Clock::time_point now = Clock::now();
  // This process was stopped, perhaps with all others (Ctrl-Z, a suspended job): that time does not count.
  if (now - last_round_ > 3 * beat_interval_) watchdog_.reset_timers(now);
  if (has_failed() || leaving_) return;
  if (const auto silent = watchdog_.find_silent(now)) {
    record_failure(name_of(*silent->rank) + " has stalled for " + seconds_text(silent->duration));
  } else if (const auto slow = leads() ? watchdog_.find_stalled(now) : std::nullopt) {
    record_failure(slow->rank ? name_of(*slow->rank) + " has stalled for " + seconds_text(slow->duration)
                              : "all ranks have waited for one another for " + seconds_text(slow->duration));
  }
}

// The first one counts: rank 0 sends it to all ranks, another rank to rank 0. The caller holds the mutex.
void ControlChannel::record_failure(const std::string& what) {
  if (has_failed()) return;
  failure_ = what;
  failed_at_ = Clock::now();
  for (Peer& peer : peers_) {
    if (!peer.connection.is_open()) continue;
    peer.connection.queue(leads() ? FrameType::verdict : FrameType::failure, what);
    peer.connection.flush();
  }
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
  wake();
}

bool ControlChannel::is_done_leaving() const {
  if (Clock::now() >= leave_until_) return true;
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    if (!peer.connection.is_open()) return true;
    if (peer.connection.has_unsent()) return false;
    return has_failed() || peer.has_left;
  });
}

} // namespace gpt2
