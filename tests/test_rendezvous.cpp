// Ranks that find each other, and strangers that do not keep them from it.
#include "engine/rendezvous/rendezvous.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "tests/expect_error.h"
#include "tests/meeting_testing.h"
#include "tests/temporary_folder.h"

using namespace gpt2;
using namespace std::chrono_literals;

TEST_CASE("candidate ports: many, different, the same for all, never the one to avoid") {
  for (int i = 0; i < 200; ++i) {
    const std::string job = "job " + std::to_string(i);
    const auto ports = candidate_ports(job, 0);
    CHECK(std::set(ports.begin(), ports.end()).size() == 16);
    CHECK(std::all_of(ports.begin(), ports.end(), [](int port) { return port >= 20000 && port < 52000; }));
    CHECK(ports == candidate_ports(job, 0));
    const auto others = candidate_ports(job, ports[3]);
    CHECK(std::count(others.begin(), others.end(), ports[3]) == 0);
    CHECK(others.size() == 16);
  }
  CHECK(candidate_ports("one", 0) != candidate_ports("another", 0));
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

TEST_CASE("with a token no file is needed, and a port that somebody holds is passed over") {
  const std::string job = new_job();
  check_meeting(2, new_job(), "", kWithToken);
  check_meeting(2, new_job(), "localhost", kWithToken);
  const Socket first = listen_at(candidate_ports(job, 0)[0], Reach::everywhere); // silent: takes calls, never answers
  check_meeting(2, job, "", kWithToken);
}

TEST_CASE("several hosts: the secret is in the folder that all see, and gone afterwards") {
  const TemporaryFolder folder;
  for (const std::string& shared : {folder.path(), folder / "made/for the meeting"}) {
    const std::string job = new_job();
    const auto outcomes = run_threads(3, [&](int rank) {
      Launch launch = rank_of_job(rank, 3, job, host_name());
      launch.shared_folder = shared;
      const Rendezvous meeting = rendezvous(launch, 60s, kNothing);
      CHECK_FALSE(meeting.on_one_host);
    });
    for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");
    CHECK(std::filesystem::is_empty(folder.path()));
  }
  Launch lonely = rank_of_job(1, 2, new_job(), host_name());
  CHECK(contains(expect_error([&] { rendezvous(lonely, 50ms, kNothing); }).hint(), "GPT2_JOB_TOKEN"));
  lonely.shared_folder = folder.path();
  const Error error = expect_error([&] { rendezvous(lonely, 50ms, kNothing); });
  CHECK(error.code() == ExitCode::communication);
  CHECK(mentions(error, "(port and secret in " + folder.path() + "/.ranks-"));
  CHECK(mentions(error, "or this node does not see it"));
}

TEST_CASE("rank 0 listens on the loopback unless another host may call") {
  const TemporaryFolder folder;
  const auto address = [&](Launch launch, const std::optional<Key>& token) {
    launch.shared_folder = folder.path();
    return local_address(MasterAddress(launch, token).listen(random_key()));
  };
  const auto everywhere = [](const std::string& address) { return address == "::" || address == "0.0.0.0"; };
  for (const std::optional<Key>& token : {std::optional<Key>(), std::optional(random_key())}) {
    for (const char* master : {"", "localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
      CHECK(address(rank_of_job(0, 2, new_job(), master), token) == "127.0.0.1");
    }
    Launch launch = rank_of_job(0, 2, new_job(), host_name()); // resolves to 127.0.1.1 on Debian, elsewhere not
    CHECK(everywhere(address(launch, token)));
    launch.local_ranks = 1;
    CHECK(everywhere(address(launch, token)));
    launch.local_ranks = 2; // the launcher says: all are here
    CHECK(address(launch, token) == "127.0.0.1");
    launch.master = "file:" + (folder / "ranks");
    CHECK(address(launch, token) == "127.0.0.1");
    launch.local_ranks = std::nullopt;
    CHECK(everywhere(address(launch, token)));
  }
}

TEST_CASE("ranks meet within a second of the start of the last one") {
  for (const Environment& environment : {kNothing, kWithToken}) {
    for (int last = 0; last < 3; ++last) {
      const std::string job = new_job();
      Clock::time_point start;
      std::atomic<double> seconds = 0;
      const auto outcomes = run_threads(3, [&](int rank) {
        if (rank == last) std::this_thread::sleep_for(700ms), start = Clock::now();
        rendezvous(rank_of_job(rank, 3, job), 60s, environment);
        if (rank == last) seconds = std::chrono::duration<double>(Clock::now() - start).count();
      });
      for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");
      CHECK(seconds < 1);
    }
  }
}

TEST_CASE("an explicit port that somebody holds is an error of rank 0") {
  const Socket held = listen_at(0, Reach::everywhere);
  const std::string master = "127.0.0.1:" + std::to_string(local_port(held));
  const Error error = expect_error([&] { rendezvous(rank_of_job(0, 2, new_job(), master), 5s, kNothing); });
  CHECK(error.code() == ExitCode::communication);
  CHECK(mentions(error, "127.0.0.1, port " + std::to_string(local_port(held))));
}

TEST_CASE("no HOST:PORT at all") {
  for (const char* bad : {"host:", "host:0", "host:65536", "host:12x", ":80", "file:"}) {
    CAPTURE(bad);
    const Error error = expect_error([&] { rendezvous(rank_of_job(1, 2, new_job(), bad), 1s, kNothing); });
    CHECK(error.code() == ExitCode::usage);
  }
}

TEST_CASE("strangers do not disturb: garbage, silence, scanners, wrong secrets, frames out of turn") {
  const std::string job = new_job();
  const int port = free_port();
  const std::string master = "127.0.0.1:" + std::to_string(port);
  const auto frame = [](FrameType type, const std::string& body) { return to_bytes(type, body, nullptr); };
  const std::string unproved(32 + 32, 'x');
  const Stranger web(port, "GET / HTTP/1.1\r\nHost: here\r\n\r\n", false), silent(port, "", false),
      scanner(port, "", true), half(port, frame(FrameType::hello, unproved).substr(0, 20), false),
      foreign(port, frame(FrameType::hello, unproved + hello_of(1, 3)), false),
      early(port, frame(FrameType::joined, ""), false), mirror(port, challenge_of(std::string(32, 'x')), false),
      huge(port, frame(FrameType::hello, std::string(4096, 'x')), false),
      endless(port, std::string(1 << 20, 'G'), false);
  std::atomic<bool> met = false;
  std::thread gone([&] { // knows the secret, and ends before it has joined
    while (!met) {
      std::string problem;
      Socket socket = connect_to("127.0.0.1", port, Clock::now() + 100ms, nullptr, problem);
      if (!socket.is_open()) continue;
      Handshake::as_client(std::move(socket), key_of(job), Handshake::Purpose::joining, hello_of(2, 3))
          .finish(Clock::now() + 1s);
    }
  });
  std::vector<Outcome> outcomes = run_threads(3, [&](int rank) {
    if (rank == 2) std::this_thread::sleep_for(500ms); // the strangers have their time
    rendezvous(rank_of_job(rank, 3, job, master), 60s, kWithToken);
  });
  met = true;
  gone.join();
  for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");
  for (const Stranger* stranger : {&web, &silent, &scanner, &half, &foreign, &early, &mirror, &huge, &endless}) {
    CHECK(stranger->calls() > 0);
  }
}

TEST_CASE("idle connections beyond the limit of open files keep nobody out") {
  const std::string job = new_job();
  const int port = free_port();
  const Launch first = rank_of_job(0, 2, job, "127.0.0.1:" + std::to_string(port));
  const pid_t rank_0 = ::fork();
  if (rank_0 == 0) { // by _exit: no test framework, no leak checker
    const rlimit few{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &few);
    int code = 0;
    try {
      rendezvous(first, 30s, kWithToken);
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    }
    ::_exit(code);
  }
  std::vector<Socket> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(call(port));
  const auto start = Clock::now();
  const auto outcomes = run_threads(1, [&](int) { rendezvous(rank_of_job(1, 2, job, first.master), 30s, kWithToken); });
  CHECK(outcomes[0].what() == "");
  CHECK(Clock::now() - start < 10s);
  int status = 0;
  ::waitpid(rank_0, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("whoever holds the port first learns nothing that lets it join") {
  const std::string job = new_job();
  Socket listener = listen_at(0, Reach::this_host);
  const int port = local_port(listener);
  const std::string master = "127.0.0.1:" + std::to_string(port);
  std::string recorded;
  const auto outcomes = run_threads(2, [&](int thread) {
    if (thread == 0) return (void)rendezvous(rank_of_job(1, 2, job, master), 1s, kWithToken);
    while (recorded.empty()) { // asks as rank 0 would, with a nonce of its own
      Connection connection(accept_from(listener));
      if (!connection.socket().is_open()) continue;
      connection.queue(FrameType::challenge, std::string(32, 'n'));
      if (const auto hello = wait_for_frame(connection, Clock::now() + 1s)) recorded = hello->body;
    }
  });
  CHECK(mentions(*outcomes[0].error, "another process"));
  listener.close();
  const auto replay = run_threads(2, [&](int thread) {
    if (thread == 0) return (void)rendezvous(rank_of_job(0, 2, job, master), 1s, kWithToken);
    Connection connection(call(port));
    CHECK(wait_for_frame(connection, Clock::now() + 1s)->type == FrameType::challenge);
    connection.queue(FrameType::hello, recorded);
    CHECK_FALSE(wait_for_frame(connection, Clock::now() + 1s).has_value());
    CHECK(connection.ended());
  });
  CHECK(replay[0].what() == "rank 1 did not join within 1 s");
}

TEST_CASE("another job at the same place is not joined") {
  const std::string master = "127.0.0.1:" + std::to_string(free_port());
  const std::string job = new_job(), other_job = new_job();
  const auto outcomes = run_threads(3, [&](int rank) {
    if (rank < 2) {
      if (rank == 1) std::this_thread::sleep_for(300ms);
      rendezvous(rank_of_job(rank, 2, job, master), 60s, kWithToken);
    } else {
      rendezvous(rank_of_job(1, 2, other_job, master), 600ms, kWithToken);
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
    rendezvous(rank_of_job(rank, 7, job), rank == 0 ? 1s : 60s, kNothing);
  });
  for (const int rank : {0, 1, 3, 4, 6}) {
    const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    CHECK(outcome.what() == "ranks 2 and 5 did not join within 1 s");
    CHECK(outcome.error->code() == ExitCode::communication);
    CHECK(contains(outcome.error->hint(), "docs/cluster.md"));
    CHECK(contains(outcome.error->hint(), "--master"));
    CHECK(contains(outcome.error->hint(), "check that test started all 7 ranks")); // the launcher's name
  }
  const Error alone = expect_error([] { rendezvous(rank_of_job(0, 2, new_job()), 100ms, kNothing); });
  CHECK(mentions(alone, "rank 1 did not join within 0.1 s"));
  const Error by_node = expect_error([] { // a launcher that counts nodes
    Launch launch = rank_of_job(0, 2, new_job());
    launch.program = "torchrun", launch.local_rank.reset();
    rendezvous(launch, 100ms, kNothing);
  });
  CHECK(contains(by_node.hint(), "RANK=0 and WORLD_SIZE=2 are set, LOCAL_RANK is not: RANK counts processes"));
  const Error many = expect_error([] { rendezvous(rank_of_job(0, 40, new_job()), 100ms, kNothing); });
  CHECK(mentions(many, "ranks 1, 2, 3,"));
  CHECK(mentions(many, "16 and 23 more did not join"));
}

TEST_CASE("a rank without a rank 0 says where it looked") {
  const Error error = expect_error([] { rendezvous(rank_of_job(3, 4, new_job(), "localhost:9"), 200ms, kWithToken); });
  CHECK(
      mentions(error, "rank 3 could not reach rank 0 at 127.0.0.1, port 9 within 0.2 s (127.0.0.1 port 9: Connection"));
}

TEST_CASE("a wrong token is reported, whichever of the candidate ports rank 0 has") {
  const std::string job = new_job();
  const std::vector<int> ports = candidate_ports(job, 0);
  const Environment other = [](const char* name) -> const char* {
    return std::string(name) == "GPT2_JOB_TOKEN" ? "a token that no other rank has" : nullptr;
  };
  const auto outcomes = run_threads(2, [&](int rank) {
    rendezvous(rank_of_job(rank, 2, job), rank == 0 ? 1500ms : 700ms, rank == 0 ? kWithToken : other);
  });
  CHECK(contains(outcomes[1].what(), "port " + std::to_string(ports[0]) + " is in use by another process"));
  CHECK(contains(outcomes[1].what(), "another secret"));
}

TEST_CASE("two processes that claim one rank, or count differently, are told so on all sides") {
  const std::string job = new_job();
  std::vector<Outcome> outcomes = run_threads(4, [&](int index) {
    const int rank = std::min(index, 1);                                   // three claim to be rank 1
    rendezvous(rank_of_job(rank, 4, job), rank == 0 ? 60s : 2s, kNothing); // one may come when all is over
  });
  CHECK(contains(outcomes[0].what(), "two processes claim to be rank 1: process " + std::to_string(::getpid())));
  for (const size_t index : {1, 2, 3}) CHECK(outcomes[index].error.has_value());
  CHECK(std::count_if(outcomes.begin(), outcomes.end(),
                      [&](const Outcome& outcome) { return outcome.what() == outcomes[0].what(); }) >= 3);

  const std::string miscounted = new_job();
  outcomes =
      run_threads(2, [&](int rank) { rendezvous(rank_of_job(rank, rank == 0 ? 2 : 3, miscounted), 60s, kNothing); });
  for (const Outcome& outcome : outcomes) CHECK(contains(outcome.what(), "counts 3 ranks, rank 0 counts 2"));
}

TEST_CASE("a rank that ends before all have joined is named") {
  const std::string job = new_job(), master = "127.0.0.1:" + std::to_string(free_port());
  const int port = std::stoi(master.substr(10));
  const auto outcomes = run_threads(2, [&](int rank) {
    if (rank == 0) return (void)rendezvous(rank_of_job(0, 3, job, master), 60s, kWithToken);
    Handshake handshake = Handshake::as_client(call(port), key_of(job), Handshake::Purpose::joining, hello_of(1, 3));
    CHECK(handshake.finish(Clock::now() + 10s));
    Connection connection = handshake.take_connection();
    connection.queue(FrameType::joined, "");
    wait_for_frame(connection, Clock::now() + 200ms);
  });
  CHECK(outcomes[0].what() == "rank 1 (elsewhere, process 1) ended while the others were still joining");
}
