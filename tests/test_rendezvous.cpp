// Ranks that find each other, and strangers that do not keep them from it.
#include "engine/dist/rendezvous.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "engine/base/files.h"
#include "engine/base/process.h"
#include "engine/dist/meeting_place.h"
#include "engine/dist/wire.h"
#include "tests/expect_error.h"
#include "tests/ranks_testing.h"
#include "tests/temporary_folder.h"

using namespace gpt2;
using namespace std::chrono_literals;

namespace {

const Environment kNothing = [](const char*) -> const char* { return nullptr; };

// All ranks meet; each sees the same processes.
void check_meeting(int ranks, const std::string& job, const std::string& master = "") {
  std::vector<std::vector<Member>> seen(static_cast<size_t>(ranks));
  const auto outcomes = run_threads(ranks, [&](int rank) {
    Meeting meeting = meet(rank_of_job(rank, ranks, job, master), 60s, kNothing);
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

int free_port() { return local_port(listen_at(0, Reach::everywhere)); }

// Somebody who calls at a port again and again, as soon as anyone listens there, and says `words`.
class Stranger {
 public:
  Stranger(int port, std::string words, bool leaves_at_once) {
    thread_ = std::thread([this, port, words, leaves_at_once] {
      while (!stop_) {
        std::string problem;
        Socket socket = connect_to(
            "127.0.0.1", port, Clock::now() + 1s, [this] { return stop_.load(); }, problem);
        if (socket.is_open() && !is_connected_to_itself(socket)) {
          ++calls_;
          ::send(socket.descriptor(), words.data(), words.size(), MSG_NOSIGNAL);
          if (!leaves_at_once) sockets_.push_back(std::move(socket)); // and keeps the line
        }
        std::this_thread::sleep_for(2ms);
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

std::string framed(FrameType type, const std::string& body) {
  return Packer()
             .put(uint32_t{0x4B523247})
             .put(static_cast<uint32_t>(type))
             .put(static_cast<uint32_t>(body.size()))
             .bytes() +
         body;
}

std::string hello(uint64_t token, int rank, int ranks) {
  return framed(
      FrameType::hello,
      Packer().put(token).put(uint64_t{0}).put(uint32_t{1}).put(rank).put(ranks).put(1).put_text("elsewhere").bytes());
}

} // namespace

TEST_CASE("numbers and texts travel, and bytes that are cut short are noticed") {
  const std::string bytes = Packer().put(uint64_t{7}).put_text("node").put(-3).bytes();
  Unpacker whole(bytes);
  CHECK(whole.take<uint64_t>() == 7);
  CHECK(whole.take_text() == "node");
  CHECK(whole.take<int>() == -3);
  CHECK(whole.complete());
  for (size_t size = 0; size < bytes.size(); ++size) {
    Unpacker cut(std::string_view(bytes).substr(0, size));
    cut.take<uint64_t>(), cut.take_text(), cut.take<int>();
    CHECK_FALSE(cut.complete());
  }
  const std::string length_of_4_gb = Packer().put(uint32_t{0xFFFFFFFF}).bytes();
  Unpacker huge(length_of_4_gb);
  CHECK(huge.take_text() == "");
  CHECK_FALSE(huge.complete());
}

TEST_CASE("candidate ports: many, different, the same for all, never the one to avoid") {
  for (uint64_t token = 0; token < 200; ++token) {
    const auto ports = candidate_ports(token, 0);
    CHECK(std::set(ports.begin(), ports.end()).size() == 16);
    CHECK(std::all_of(ports.begin(), ports.end(), [](int port) { return port >= 20000 && port < 52000; }));
    CHECK(ports == candidate_ports(token, 0));
    const auto others = candidate_ports(token, ports[3]);
    CHECK(std::count(others.begin(), others.end(), ports[3]) == 0);
    CHECK(others.size() == 16);
  }
  CHECK(candidate_ports(1, 0) != candidate_ports(2, 0));
}

TEST_CASE("the token knows the job and the secret of its user") {
  const auto secret = [](const char* name) -> const char* {
    return std::string(name) == "GPT2_JOB_TOKEN" ? "s3cret" : nullptr;
  };
  const Launch one = rank_of_job(0, 2, "one"), other = rank_of_job(0, 2, "other");
  CHECK(job_token(one, kNothing) == job_token(rank_of_job(1, 2, "one"), kNothing));
  CHECK(job_token(one, kNothing) != job_token(other, kNothing));
  CHECK(job_token(one, kNothing) != job_token(one, secret));
}

TEST_CASE("ranks meet on this host, by name, by address and port") {
  for (const int ranks : {2, 3, 7}) check_meeting(ranks, new_job());
  check_meeting(3, new_job(), "localhost");
  check_meeting(3, new_job(), "127.0.0.1:" + std::to_string(free_port()));
  const int port = free_port();
  check_meeting(2, new_job(), "localhost:" + std::to_string(port));
  check_meeting(2, new_job(), "localhost:" + std::to_string(port)); // and again at once: no port stays taken
}

TEST_CASE("IPv6, where this machine has it") {
  std::string problem;
  const Socket listener = listen_at(0, Reach::everywhere);
  if (!connect_to("::1", local_port(listener), Clock::now() + 1s, nullptr, problem).is_open()) return;
  check_meeting(2, new_job(), "::1");
  check_meeting(2, new_job(), "[::1]:" + std::to_string(free_port()));
}

TEST_CASE("a port that somebody holds is passed over") {
  const std::string job = new_job();
  const auto ports = candidate_ports(job_token(rank_of_job(0, 2, job), kNothing), 0);
  const Socket first = listen_at(ports[0], Reach::everywhere); // silent: takes calls and never answers
  check_meeting(2, job);
}

TEST_CASE("an explicit port that somebody holds is an error of rank 0") {
  const Socket held = listen_at(0, Reach::everywhere);
  const std::string master = "127.0.0.1:" + std::to_string(local_port(held));
  const Error error = expect_error([&] { meet(rank_of_job(0, 2, new_job(), master), 5s, kNothing); });
  CHECK(error.code() == ExitCode::communication);
  CHECK(mentions(error, "127.0.0.1, port " + std::to_string(local_port(held))));
}

TEST_CASE("no HOST:PORT at all") {
  for (const char* bad : {"host:", "host:0", "host:65536", "host:12x", ":80"}) {
    CAPTURE(bad);
    const Error error = expect_error([&] { meet(rank_of_job(1, 2, new_job(), bad), 1s, kNothing); });
    CHECK(error.code() == ExitCode::usage);
  }
}

TEST_CASE("strangers do not disturb: garbage, silence, scanners, wrong tokens, words out of turn") {
  const std::string job = new_job();
  const int port = free_port();
  const std::string master = "127.0.0.1:" + std::to_string(port);
  const uint64_t token = job_token(rank_of_job(0, 3, job), kNothing);
  const Stranger web(port, "GET / HTTP/1.1\r\nHost: here\r\n\r\n", false), silent(port, "", false),
      scanner(port, "", true), half(port, hello(token, 1, 3).substr(0, 20), false),
      foreign(port, hello(token + 1, 1, 3), false), early(port, framed(FrameType::joined, ""), false),
      huge(port, Packer().put(uint32_t{0x4B523247}).put(0).put(~0u).bytes(), false),
      gone(port, hello(token, 2, 3), true); // knows the token, and ends before it has joined
  std::vector<Outcome> outcomes = run_threads(3, [&](int rank) {
    if (rank == 2) std::this_thread::sleep_for(500ms); // the strangers have their time
    meet(rank_of_job(rank, 3, job, master), 60s, kNothing);
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");
  for (const Stranger* stranger : {&web, &silent, &scanner, &half, &foreign, &early, &huge, &gone}) {
    CHECK(stranger->calls() > 0);
  }
}

TEST_CASE("another job at the same place is not joined") {
  const std::string master = "127.0.0.1:" + std::to_string(free_port());
  const std::string job = new_job(), other_job = new_job();
  const auto outcomes = run_threads(3, [&](int rank) {
    if (rank < 2) {
      if (rank == 1) std::this_thread::sleep_for(300ms);
      meet(rank_of_job(rank, 2, job, master), 60s, kNothing);
    } else {
      meet(rank_of_job(1, 2, other_job, master), 600ms, kNothing);
    }
  });
  CHECK(outcomes[0].what() == "");
  CHECK(outcomes[1].what() == "");
  CHECK(contains(outcomes[2].what(), "rank 1 could not reach rank 0 at " + master.substr(0, 9) + ", port"));
}

TEST_CASE("ranks that are missing are named, on all ranks that came") {
  const std::string job = new_job();
  const auto outcomes = run_threads(7, [&](int rank) {
    if (rank == 2 || rank == 5) return;
    meet(rank_of_job(rank, 7, job), rank == 0 ? 1s : 60s, kNothing);
  });
  for (const int rank : {0, 1, 3, 4, 6}) {
    const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    CHECK(outcome.what() == "ranks 2 and 5 did not join within 1 s");
    CHECK(outcome.error->code() == ExitCode::communication);
    CHECK(contains(outcome.error->hint(), "docs/cluster.md"));
    CHECK(contains(outcome.error->hint(), "--master"));
    CHECK(contains(outcome.error->hint(), "has test started all 7 ranks")); // the launcher's name
  }
  const Error alone = expect_error([] { meet(rank_of_job(0, 2, new_job()), 100ms, kNothing); });
  CHECK(mentions(alone, "rank 1 did not join within 100 ms"));
  const Error many = expect_error([] { meet(rank_of_job(0, 40, new_job()), 100ms, kNothing); });
  CHECK(mentions(many, "ranks 1, 2, 3,"));
  CHECK(mentions(many, "16 and 23 more did not join"));
}

TEST_CASE("a rank without a rank 0 says where it looked") {
  const Error error = expect_error([] { meet(rank_of_job(3, 4, new_job(), "localhost:9"), 200ms, kNothing); });
  CHECK(mentions(error,
                 "rank 3 could not reach rank 0 at localhost, port 9 within 200 ms (localhost port 9: Connection"));
}

TEST_CASE("two processes that claim one rank, or count differently, are told so on all sides") {
  const std::string job = new_job();
  std::vector<Outcome> outcomes = run_threads(4, [&](int index) {
    const int rank = std::min(index, 1);                             // three claim to be rank 1
    meet(rank_of_job(rank, 4, job), rank == 0 ? 60s : 2s, kNothing); // one may come when all is over
  });
  CHECK(contains(outcomes[0].what(), "two processes claim to be rank 1: process " + std::to_string(::getpid())));
  for (const size_t index : {1, 2, 3}) CHECK(outcomes[index].error.has_value());
  CHECK(std::count_if(outcomes.begin(), outcomes.end(),
                      [&](const Outcome& outcome) { return outcome.what() == outcomes[0].what(); }) >= 3);

  const std::string miscounted = new_job();
  outcomes = run_threads(2, [&](int rank) { meet(rank_of_job(rank, rank == 0 ? 2 : 3, miscounted), 60s, kNothing); });
  for (const Outcome& outcome : outcomes) CHECK(contains(outcome.what(), "counts 3 ranks, rank 0 counts 2"));
}

TEST_CASE("a rank that ends before all have joined is named") {
  const std::string job = new_job(), master = "127.0.0.1:" + std::to_string(free_port());
  const int port = std::stoi(master.substr(10));
  const uint64_t token = job_token(rank_of_job(0, 3, job), kNothing);
  const auto outcomes = run_threads(2, [&](int rank) {
    if (rank == 0) return (void)meet(rank_of_job(0, 3, job, master), 60s, kNothing);
    for (;;) {
      std::string problem;
      Connection connection(connect_to("127.0.0.1", port, Clock::now() + 1s, nullptr, problem));
      if (!connection.socket().is_open() || is_connected_to_itself(connection.socket())) continue;
      const std::string words = hello(token, 1, 3) + framed(FrameType::joined, "");
      ::send(connection.socket().descriptor(), words.data(), words.size(), MSG_NOSIGNAL);
      wait_for_frame(connection, Clock::now() + 10s, nullptr);
      return;
    }
  });
  CHECK(outcomes[0].what() == "rank 1 (elsewhere, process 1) ended while the others were still joining");
}

TEST_CASE("a shared file tells where rank 0 is, and is gone afterwards") {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks";
  check_meeting(3, new_job(), "file:" + path);
  CHECK_FALSE(std::filesystem::exists(path));
  expect_error([&] { meet(rank_of_job(0, 2, new_job(), "file:" + path), 50ms, kNothing); });
  CHECK_FALSE(std::filesystem::exists(path));
  const Error error = expect_error([&] { meet(rank_of_job(1, 2, new_job(), "file:" + path), 50ms, kNothing); });
  CHECK(mentions(error, "could not reach rank 0 at the address in " + path));
  CHECK(expect_error([&] {
          meet(rank_of_job(0, 2, new_job(), "file:" + (folder / "missing/ranks")), 50ms, kNothing);
        }).code() == ExitCode::disk);
}

TEST_CASE("the file of an earlier run is not believed") {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks", job = new_job();
  const Socket silent = listen_at(0, Reach::everywhere); // a stale file may lead to somebody else
  write_file_atomic(path, "gpt2_ranks 12345 " + std::to_string(local_port(silent)) + "\n127.0.0.1\n");
  check_meeting(2, job, "file:" + path);
  write_file_atomic(path, "gpt2_ranks 12345 9\n127.0.0.1\n");
  check_meeting(2, job, "file:" + path);
  std::ofstream(path) << "not ours";
  check_meeting(2, job, "file:" + path);
}

TEST_CASE("a caller with the nonce of an earlier run is turned away") {
  const std::string job = new_job(), master = "127.0.0.1:" + std::to_string(free_port());
  const int port = std::stoi(master.substr(10));
  const uint64_t token = job_token(rank_of_job(0, 2, job), kNothing);
  const std::string stale = framed(
      FrameType::hello,
      Packer().put(token).put(uint64_t{12345}).put(uint32_t{1}).put(1).put(2).put(1).put_text("elsewhere").bytes());
  const Stranger earlier(port, stale + framed(FrameType::joined, ""), false);
  const Error error = expect_error([&] { meet(rank_of_job(0, 2, job, master), 500ms, kNothing); });
  CHECK(mentions(error, "rank 1 did not join"));
  CHECK(earlier.calls() > 0);
}
