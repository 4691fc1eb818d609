// Ranks that meet in threads of this process, strangers, and a token.
#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "engine/network/acceptor.h"
#include "engine/rendezvous/job_token.h"
#include "engine/rendezvous/master_address.h"
#include "engine/rendezvous/rendezvous.h"
#include "engine/system/process.h"
#include "tests/ranks_testing.h"

namespace gpt2 {

inline const Environment kNothing = [](const char*) -> const char* { return nullptr; };

// All ranks meet; each sees the same processes.
inline void check_meeting(int ranks, const std::string& job, const std::string& master = "",
                          const Environment& environment = kNothing) {
  std::vector<std::vector<Member>> seen(static_cast<size_t>(ranks));
  const auto outcomes = run_threads(ranks, [&](int rank) {
    Rendezvous meeting = rendezvous(rank_of_job(rank, ranks, job, master), std::chrono::seconds(60), environment);
    seen[static_cast<size_t>(rank)] = meeting.members;
    CHECK(meeting.connections.size() == static_cast<size_t>(ranks));
    for (int other = 0; other < ranks; ++other) {
      const bool connected = meeting.connections[static_cast<size_t>(other)].socket().is_open();
      CHECK(connected == (rank == 0 ? other != 0 : other == 0));
    }
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");
  for (const auto& members : seen) {
    REQUIRE(members.size() == static_cast<size_t>(ranks));
    for (const Member& member : members) {
      CHECK(member.host == host_name());
      CHECK(member.process == ::getpid());
    }
  }
}

inline int free_port() { return local_port(listen_at(0, Reach::everywhere)); }

// Somebody who calls at a port again and again, as soon as anyone listens there, and says `words`.
class Stranger {
 public:
  Stranger(int port, std::string words, bool leaves_at_once) {
    thread_ = std::thread([this, port, words, leaves_at_once] {
      while (!stop_) {
        std::string problem;
        Socket socket = connect_to(
            "127.0.0.1", port, Clock::now() + std::chrono::seconds(1), [this] { return stop_.load(); }, problem);
        if (socket.is_open() && !is_connected_to_itself(socket)) {
          ++calls_;
          ::send(socket.descriptor(), words.data(), words.size(), MSG_NOSIGNAL);
          if (!leaves_at_once) sockets_.push_back(std::move(socket)); // and keeps the line
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  }
  ~Stranger() {
    stop_ = true;
    thread_.join();
  }
  int calls() const { return calls_; }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<int> calls_ = 0;
  std::vector<Socket> sockets_;
  std::thread thread_;
};

inline std::string challenge_of(const std::string& nonce) { return to_bytes(FrameType::challenge, nonce, nullptr); }
inline std::string hello_of(int rank, int ranks) {
  return to_bytes(Hello{.version = 2, .rank = rank, .ranks = ranks, .from = {"elsewhere", 1, ""}});
}

inline constexpr const char* kToken = "a token of more than 16 characters";
inline const Environment kWithToken = [](const char* name) -> const char* {
  return std::string(name) == "GPT2_JOB_TOKEN" ? kToken : nullptr;
};
inline Key key_of(const std::string& job) { return *key_of_token(rank_of_job(0, 2, job), kWithToken); }

inline Socket call(int port) { // until somebody listens there
  for (;;) {
    std::string problem;
    Socket socket = connect_to("127.0.0.1", port, Clock::now() + std::chrono::seconds(1), nullptr, problem);
    if (socket.is_open() && !is_connected_to_itself(socket)) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

} // namespace gpt2
