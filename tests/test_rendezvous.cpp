// Ranks that find each other, and strangers that do not keep them from it.
#include "engine/dist/rendezvous.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "engine/base/files.h"
#include "engine/base/process.h"
#include "engine/dist/lobby.h"
#include "engine/dist/meeting_place.h"
#include "engine/dist/mesh.h"
#include "engine/dist/published_file.h"
#include "engine/dist/wire.h"
#include "tests/expect_error.h"
#include "tests/ranks_testing.h"
#include "tests/temporary_folder.h"

using namespace gpt2;
using namespace std::chrono_literals;

namespace {

const Environment kNothing = [](const char*) -> const char* { return nullptr; };

// All ranks meet; each sees the same processes.
void check_meeting(int ranks, const std::string& job, const std::string& master = "",
                   const Environment& environment = kNothing) {
  std::vector<std::vector<Member>> seen(static_cast<size_t>(ranks));
  const auto outcomes = run_threads(ranks, [&](int rank) {
    Meeting meeting = meet(rank_of_job(rank, ranks, job, master), 60s, environment);
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

std::string challenge_of(const std::string& nonce) { return to_bytes(FrameType::challenge, nonce, nullptr); }
std::string hello_of(int rank, int ranks) {
  return to_bytes(Hello{.version = 2, .rank = rank, .ranks = ranks, .from = {"elsewhere", 1, ""}});
}

constexpr const char* kToken = "a token of more than 16 characters";
const Environment kWithToken = [](const char* name) -> const char* {
  return std::string(name) == "GPT2_JOB_TOKEN" ? kToken : nullptr;
};
Key key_of(const std::string& job) { return *key_of_token(rank_of_job(0, 2, job), kWithToken); }

Socket call(int port) { // until somebody listens there
  for (;;) {
    std::string problem;
    Socket socket = connect_to("127.0.0.1", port, Clock::now() + 1s, nullptr, problem);
    if (socket.is_open() && !is_connected_to_itself(socket)) return socket;
    std::this_thread::sleep_for(1ms);
  }
}

// Two ends of one connection that have proved the secret to each other.
std::pair<Connection, Connection> sealed_pair(const Key& key) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  Handshake called = Handshake::as_called(Socket(ends[0]), key, Purpose::joining);
  Handshake caller = Handshake::as_caller(Socket(ends[1]), key, Purpose::joining, "me");
  for (int i = 0; i < 3; ++i) called.advance(), caller.advance();
  REQUIRE(called.advance() == Handshake::State::done);
  REQUIRE(caller.advance() == Handshake::State::done);
  CHECK(called.who() == "me");
  return {called.take_connection(), caller.take_connection()};
}

// Whether two sides finish a handshake.
bool agree(const Key& called_key, Purpose called_for, const Key& caller_key, Purpose caller_for) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  Handshake called = Handshake::as_called(Socket(ends[0]), called_key, called_for);
  Handshake caller = Handshake::as_caller(Socket(ends[1]), caller_key, caller_for, "me");
  for (int i = 0; i < 3; ++i) called.advance(), caller.advance();
  const bool done = called.advance() == Handshake::State::done;
  CHECK(done == (caller.advance() == Handshake::State::done));
  return done;
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

TEST_CASE("a token is a text or a file, belongs to one job, and is not short") {
  const TemporaryFolder folder;
  const auto key = [&](const std::string& job, const std::string& token, const std::string& file) {
    return key_of_token(rank_of_job(0, 2, job), [&](const char* name) -> const char* {
      return std::string(name) == "GPT2_JOB_TOKEN" ? token.c_str() : file.c_str();
    });
  };
  CHECK_FALSE(key_of_token(rank_of_job(0, 2, "one"), kNothing).has_value());
  CHECK_FALSE(key("one", "", "").has_value());
  CHECK(key("one", kToken, "") == key("one", kToken, "not read"));
  CHECK(key("one", kToken, "") != key("other", kToken, ""));
  CHECK(key("one", kToken, "") != key("one", kToken + std::string("!"), ""));
  std::ofstream(folder / "token") << kToken << "\n";
  CHECK(key("one", "", folder / "token") == key("one", kToken, ""));
  for (const auto& [token, file] : {std::pair<std::string, std::string>{"s3cret", ""}, {"", folder / "missing"}}) {
    const Error error = expect_error([&, token = token, file = file] { key("one", token, file); });
    CHECK(error.code() == ExitCode::usage);
    CHECK_FALSE(error.hint().empty());
  }
  std::ofstream(folder / "empty") << "\n";
  CHECK(mentions(expect_error([&] { key("one", "", folder / "empty"); }), "GPT2_JOB_TOKEN_FILE="));
}

TEST_CASE("keys as text, and HMACs of parts") {
  const Key key = random_key();
  CHECK(key_of_hex(to_hex(key)) == key);
  CHECK(key != random_key());
  for (const std::string& bad : {std::string(), to_hex(key).substr(1), to_hex(key) + "00", std::string(64, 'x')}) {
    CHECK_FALSE(key_of_hex(bad).has_value());
  }
  // HMAC-SHA256 of RFC 4231, test case 2, would be of "what do ya want for nothing?"; ours has lengths before parts.
  CHECK(hmac(key, {"ab", "c"}) == hmac(key, {"ab", "c"}));
  CHECK(hmac(key, {"ab", "c"}) != hmac(key, {"a", "bc"}));
  CHECK(hmac(key, {"ab"}) != hmac(key, {"ab", ""}));
  CHECK(hmac(key, {"ab"}) != hmac(random_key(), {"ab"}));
}

TEST_CASE("a handshake needs the same secret and purpose on both sides") {
  const Key key = random_key();
  CHECK(agree(key, Purpose::joining, key, Purpose::joining));
  CHECK(agree(key, Purpose::mesh, key, Purpose::mesh));
  CHECK_FALSE(agree(key, Purpose::joining, key, Purpose::mesh));
  CHECK_FALSE(agree(key, Purpose::joining, random_key(), Purpose::joining));
}

TEST_CASE("frames after a handshake: none can be altered, repeated, left out or sent back") {
  auto [called, caller] = sealed_pair(random_key());
  const std::string large(300000, 'x');
  for (int i = 0; i < 3; ++i) {
    caller.queue(FrameType::message, large + std::to_string(i)), called.queue(FrameType::heartbeat, "");
    CHECK(wait_for_frame(called, Clock::now() + 1ms, nullptr).has_value() == false);
    const auto send_on = [&, &sender = caller] { sender.flush(); };
    std::optional<Frame> frame;
    while (!(frame = called.next())) send_on(), called.receive();
    CHECK(frame->body == large + std::to_string(i));
    CHECK(wait_for_frame(caller, Clock::now() + 5s, nullptr)->type == FrameType::heartbeat);
  }

  const Key key = random_key();
  FrameSeal seal(key), of_other_side(random_key());
  const std::string first = to_bytes(FrameType::message, "first", &seal), second = to_bytes(FrameType::message, "2", &seal);
  const auto frames_of = [&](const std::string& bytes) { // how many are read before the reader gives up
    FrameReader reader;
    reader.expect_seals(key);
    reader.append(bytes);
    int count = 0;
    while (reader.next()) ++count;
    return reader.is_broken() ? -1 - count : count;
  };
  CHECK(frames_of(first + second) == 2);
  CHECK(frames_of(first + first) == -2);
  CHECK(frames_of(second) == -1);
  CHECK(frames_of(to_bytes(FrameType::message, "first", &of_other_side)) == -1);
  CHECK(frames_of(to_bytes(FrameType::message, "first", nullptr) + std::string(32, '\0')) == -1);
  for (size_t at = 0; at < first.size(); ++at) {
    std::string altered = first + second;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    CAPTURE(at);
    const bool is_size = at >= 8 && at < 12; // a larger size waits for bytes that do not come
    CHECK((frames_of(altered) == -1 || (is_size && frames_of(altered) <= 0)));
  }
}

TEST_CASE("a stranger costs a kilobyte, whatever it sends") {
  FrameReader reader;
  size_t appended = 0;
  while (const size_t room = reader.room()) {
    reader.append(to_bytes(FrameType::hello, std::string(1024, 'x'), nullptr).substr(0, room)), appended += room;
  }
  CHECK(appended <= 2048);
  REQUIRE(reader.next().has_value());
  CHECK(reader.room() > 0);
  reader.append(to_bytes(FrameType::hello, std::string(1025, 'x'), nullptr).substr(0, 12));
  CHECK_FALSE(reader.next().has_value());
  CHECK(reader.is_broken());
  CHECK(reader.room() == 0);
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
      const Meeting meeting = meet(launch, 60s, kNothing);
      CHECK_FALSE(meeting.on_one_host);
    });
    for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");
    CHECK(std::filesystem::is_empty(folder.path()));
  }
  Launch lonely = rank_of_job(1, 2, new_job(), host_name());
  CHECK(mentions(expect_error([&] { meet(lonely, 50ms, kNothing); }), "GPT2_JOB_TOKEN"));
  lonely.shared_folder = folder.path();
  const Error error = expect_error([&] { meet(lonely, 50ms, kNothing); });
  CHECK(error.code() == ExitCode::communication);
  CHECK(mentions(error, "(port and secret in " + folder.path() + "/.ranks-"));
  CHECK(mentions(error, "rank 0 has not written it yet"));
}

TEST_CASE("rank 0 listens on the loopback unless another host may call") {
  const TemporaryFolder folder;
  const auto address = [&](Launch launch, const std::optional<Key>& token) {
    launch.shared_folder = folder.path();
    const auto place = MeetingPlace::of(launch, token);
    return local_address(place->listen(random_key()));
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

TEST_CASE("the secret on one host: a file of this user alone, gone once all have joined") {
  const std::string job = new_job();
  const auto files = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(runtime_folder())) names.insert(entry.path().string());
    return names;
  };
  const auto before = files();
  const auto outcomes = run_threads(2, [&](int rank) {
    if (rank == 1) {
      std::string file; // another test may leave or make one meanwhile: ours is new, and this job's
      while (file.empty()) {
        for (const std::string& name : files()) {
          if (!before.contains(name)) file = name;
        }
      }
      struct stat status {};
      REQUIRE(::lstat(file.c_str(), &status) == 0);
      CHECK((status.st_mode & 0777) == 0600);
      REQUIRE(::lstat(runtime_folder().c_str(), &status) == 0);
      CHECK((status.st_mode & 0777) == 0700);
    }
    meet(rank_of_job(rank, 2, job), 60s, kNothing);
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");

  const TemporaryFolder root;
  const std::string folder = runtime_folder(root.path());
  CHECK(runtime_folder(root.path()) == folder);
  ::chmod(folder.c_str(), 0755);
  CHECK(mentions(expect_error([&] { runtime_folder(root.path()); }), "is not a folder of this user alone"));
  ::rmdir(folder.c_str());
  REQUIRE(::symlink(root.path().c_str(), folder.c_str()) == 0);
  CHECK(mentions(expect_error([&] { runtime_folder(root.path()); }), "is not a folder of this user alone"));
}

TEST_CASE("ranks meet within a second of the start of the last one") {
  for (const Environment& environment : {kNothing, kWithToken}) {
    for (int last = 0; last < 3; ++last) {
      const std::string job = new_job();
      Clock::time_point start;
      std::atomic<double> seconds = 0;
      const auto outcomes = run_threads(3, [&](int rank) {
        if (rank == last) std::this_thread::sleep_for(700ms), start = Clock::now();
        meet(rank_of_job(rank, 3, job), 60s, environment);
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
      Handshake::as_caller(std::move(socket), key_of(job), Purpose::joining, hello_of(2, 3)).finish(Clock::now() + 1s);
    }
  });
  std::vector<Outcome> outcomes = run_threads(3, [&](int rank) {
    if (rank == 2) std::this_thread::sleep_for(500ms); // the strangers have their time
    meet(rank_of_job(rank, 3, job, master), 60s, kWithToken);
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
      meet(first, 30s, kWithToken);
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    }
    ::_exit(code);
  }
  std::vector<Socket> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(call(port));
  const auto start = Clock::now();
  const auto outcomes = run_threads(1, [&](int) { meet(rank_of_job(1, 2, job, first.master), 30s, kWithToken); });
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
    if (thread == 0) return (void)meet(rank_of_job(1, 2, job, master), 1s, kWithToken);
    while (recorded.empty()) { // asks as rank 0 would, with a nonce of its own
      Connection connection(accept_from(listener));
      if (!connection.socket().is_open()) continue;
      connection.queue(FrameType::challenge, std::string(32, 'n'));
      if (const auto hello = wait_for_frame(connection, Clock::now() + 1s, nullptr)) recorded = hello->body;
    }
  });
  CHECK(mentions(*outcomes[0].error, "another process"));
  listener.close();
  const auto replay = run_threads(2, [&](int thread) {
    if (thread == 0) return (void)meet(rank_of_job(0, 2, job, master), 1s, kWithToken);
    Connection connection(call(port));
    CHECK(wait_for_frame(connection, Clock::now() + 1s, nullptr)->type == FrameType::challenge);
    connection.queue(FrameType::hello, recorded);
    CHECK_FALSE(wait_for_frame(connection, Clock::now() + 1s, nullptr).has_value());
    CHECK(connection.ended());
  });
  CHECK(replay[0].what() == "rank 1 did not join within 1 s");
}

TEST_CASE("the mesh connects ranks, and nobody else") {
  const Key key = random_key();
  std::vector<Socket> listeners;
  MeshPlan plan{.rank = 0, .key = key, .endpoints = {}};
  for (int rank = 0; rank < 3; ++rank) {
    listeners.push_back(listen_at(0, Reach::this_host));
    plan.endpoints.push_back({"127.0.0.1", local_port(listeners.back())});
  }
  const Stranger web(plan.endpoints[0].port, "GET / HTTP/1.1\r\n\r\n", false), silent(plan.endpoints[1].port, "", false);
  const std::string as_rank_2 = Packer().put(2).put(0).bytes();
  std::vector<Handshake> foreign; // before the ranks, and with all but the secret or the purpose
  foreign.push_back(Handshake::as_caller(call(plan.endpoints[0].port), random_key(), Purpose::mesh, as_rank_2));
  foreign.push_back(Handshake::as_caller(call(plan.endpoints[0].port), key, Purpose::joining, as_rank_2));
  std::vector<std::vector<Socket>> meshes(3);
  run_threads(4, [&](int thread) {
    if (thread == 3) {
      for (Handshake& handshake : foreign) CHECK_FALSE(handshake.finish(Clock::now() + 3s));
      return;
    }
    if (thread == 0) std::this_thread::sleep_for(100ms);
    MeshPlan mine = plan;
    mine.rank = thread;
    std::string problem;
    const auto index = static_cast<size_t>(thread);
    meshes[index] = connect_mesh(mine, listeners[index], [] { return false; }, problem);
    CHECK(problem == "");
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    for (size_t other = 0; other < 3; ++other) {
      CHECK(meshes[rank][other].is_open() == (rank != other));
      if (rank < other) {
        const char sent = static_cast<char>('a' + rank);
        char got = 0;
        CHECK(::send(meshes[rank][other].descriptor(), &sent, 1, 0) == 1);
        wait_until_ready(meshes[other][rank].descriptor(), POLLIN, 1s);
        CHECK(::recv(meshes[other][rank].descriptor(), &got, 1, 0) == 1);
        CHECK(got == sent);
      }
    }
  }
}

TEST_CASE("another job at the same place is not joined") {
  const std::string master = "127.0.0.1:" + std::to_string(free_port());
  const std::string job = new_job(), other_job = new_job();
  const auto outcomes = run_threads(3, [&](int rank) {
    if (rank < 2) {
      if (rank == 1) std::this_thread::sleep_for(300ms);
      meet(rank_of_job(rank, 2, job, master), 60s, kWithToken);
    } else {
      meet(rank_of_job(1, 2, other_job, master), 600ms, kWithToken);
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
  const Error error = expect_error([] { meet(rank_of_job(3, 4, new_job(), "localhost:9"), 200ms, kWithToken); });
  CHECK(mentions(error,
                 "rank 3 could not reach rank 0 at 127.0.0.1, port 9 within 200 ms (127.0.0.1 port 9: Connection"));
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
  const auto outcomes = run_threads(2, [&](int rank) {
    if (rank == 0) return (void)meet(rank_of_job(0, 3, job, master), 60s, kWithToken);
    Handshake handshake = Handshake::as_caller(call(port), key_of(job), Purpose::joining, hello_of(1, 3));
    CHECK(handshake.finish(Clock::now() + 10s));
    Connection connection = handshake.take_connection();
    connection.queue(FrameType::joined, "");
    wait_for_frame(connection, Clock::now() + 200ms, nullptr);
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
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("the file of an earlier run is not believed, and is replaced") {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks", job = new_job();
  const Socket silent = listen_at(0, Reach::everywhere); // a stale file may lead to somebody else
  Publication stale{.key = to_hex(random_key()), .port = local_port(silent), .addresses = {"127.0.0.1"}};
  for (const std::string& text : {to_text(stale), std::string("gpt2_ranks 12345 9\n127.0.0.1\n"), // of version 1
                                  to_text(stale).substr(0, 40)}) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0600);
    check_meeting(2, job, "file:" + path);
    CHECK_FALSE(std::filesystem::exists(path));
  }
}

TEST_CASE("a file of somebody else is refused by all ranks, and stays as it is") {
  const TemporaryFolder folder;
  const std::string path = folder / "thesis.txt", link = folder / "link", pipe = folder / "pipe";
  REQUIRE(::symlink(path.c_str(), link.c_str()) == 0);
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& text : {std::string("x\n"), std::string("gpt2_rankings\n"), std::string(1 << 20, 'x')}) {
    std::ofstream(path) << text;
    for (const std::string& named : {path, link, pipe, folder.path()}) {
      for (const int rank : {0, 1}) {
        CAPTURE(named);
        const Error error = expect_error([&] { meet(rank_of_job(rank, 2, new_job(), "file:" + named), 5s, kNothing); });
        CHECK(error.code() == ExitCode::usage);
        CHECK(mentions(error, named + " exists, and is not a file by which ranks meet"));
        CHECK(contains(error.hint(), "--master file:PATH"));
      }
    }
    CHECK(read_text_file(path) == text);
  }
  std::ofstream(path, std::ios::trunc).close(); // as mktemp makes it: rank 0 cannot know whose it is
  CHECK(expect_error([&] { meet(rank_of_job(0, 2, new_job(), "file:" + path), 5s, kNothing); }).code() ==
        ExitCode::usage);
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("a file that took the place of ours while ranks were joining stays") {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks";
  PublishedFile file(path);
  file.write({.key = "", .port = 1, .addresses = {"here"}});
  std::filesystem::remove(path);
  std::ofstream(path) << "mine now";
  file.remove();
  CHECK(read_text_file(path) == "mine now");
}

TEST_CASE("a published file that others may read or write is not believed") {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks";
  const Publication publication{.key = to_hex(random_key()), .port = 1, .addresses = {"here"}};
  std::ofstream(path) << to_text(publication);
  ::chmod(path.c_str(), 0600);
  CHECK(PublishedFile(path).read()->key == publication.key);
  ::chmod(path.c_str(), 0644);
  CHECK(mentions(expect_error([&] { PublishedFile(path).read(); }), "others may read it"));
}

TEST_CASE("publications are read whole or not at all") {
  const Publication publication{.key = to_hex(random_key()), .port = 4000, .addresses = {"10.0.0.1", "fe80::1"}};
  const std::string text = to_text(publication);
  const auto read = read_publication(text);
  REQUIRE(read.has_value());
  CHECK(read->key == publication.key);
  CHECK(read->port == 4000);
  CHECK(read->addresses == publication.addresses);
  for (size_t size = 0; size < text.size(); ++size) {
    CHECK_FALSE(read_publication(text.substr(0, size)).has_value());
    CHECK(may_become_publication(text.substr(0, size)));
  }
  for (const char* bad : {"gpt2_ranks 3\nport 1\naddress a\nend\n", "gpt2_ranks 2\nport 0\naddress a\nend\n",
                          "gpt2_ranks 2\nport 65536\naddress a\nend\n", "gpt2_ranks 2\naddress a\nend\n",
                          "gpt2_ranks 2\nport 1\nend\n", "gpt2_ranks 2\nkey 12\nport 1\naddress a\nend\n",
                          "gpt2_ranks 2\nport 1\naddress a\nend\nend\n", "gpt2_ranks 2\nport 1\naddress\nend\n"}) {
    CHECK_FALSE(read_publication(bad).has_value());
  }
}
