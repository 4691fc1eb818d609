// The secret of a job: who has it, how two processes prove it, and what nobody else can do.
#include "engine/network/handshake.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/stat.h>

#include <fstream>
#include <numeric>

#include "engine/network/wire.h"
#include "engine/rendezvous/job_token.h"
#include "engine/rendezvous/mesh.h"
#include "tests/expect_error.h"
#include "tests/meeting_testing.h"
#include "tests/temporary_folder.h"

using namespace gpt2;
using namespace std::chrono_literals;

namespace {

// Two ends of one connection that have proved the secret to each other.
std::pair<Connection, Connection> sealed_pair(const Key& key) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  Handshake called = Handshake::as_server(Socket(ends[0]), key, Handshake::Purpose::joining);
  Handshake caller = Handshake::as_client(Socket(ends[1]), key, Handshake::Purpose::joining, "me");
  for (int i = 0; i < 3; ++i) called.advance(), caller.advance();
  REQUIRE(called.advance() == Handshake::State::done);
  REQUIRE(caller.advance() == Handshake::State::done);
  CHECK(called.identity() == "me");
  return {called.take_connection(), caller.take_connection()};
}

// Whether two sides finish a handshake.
bool agree(const Key& called_key, Handshake::Purpose called_for, const Key& caller_key, Handshake::Purpose caller_for) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  Handshake called = Handshake::as_server(Socket(ends[0]), called_key, called_for);
  Handshake caller = Handshake::as_client(Socket(ends[1]), caller_key, caller_for, "me");
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
  CHECK(key("one", kToken + std::string(" \n"), "") == key("one", kToken, ""));
  std::ofstream(folder / "token") << kToken << "\n";
  CHECK(mentions(expect_error([&] { key("one", "", folder / "token"); }), "other users may read"));
  REQUIRE(::chmod((folder / "token").c_str(), 0600) == 0);
  CHECK(key("one", "", folder / "token") == key("one", kToken, ""));
  for (const auto& [token, file] : {std::pair<std::string, std::string>{"s3cret", ""}, {"", folder / "missing"}}) {
    const Error error = expect_error([&, token = token, file = file] { key("one", token, file); });
    CHECK(error.code() == ExitCode::usage);
    CHECK_FALSE(error.hint().empty());
  }
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const std::string& file : {std::string("/dev/zero"), folder / "pipe", folder.path()}) {
    CHECK(mentions(expect_error([&] { key("one", "", file); }), "is not a regular file"));
  }
  std::ofstream(folder / "long") << std::string(4097, 'x');
  std::ofstream(folder / "empty") << "\n";
  for (const char* name : {"long", "empty"}) REQUIRE(::chmod((folder / name).c_str(), 0600) == 0);
  CHECK(mentions(expect_error([&] { key("one", "", folder / "long"); }), "more than 4096 bytes"));
  CHECK(mentions(expect_error([&] { key("one", "", folder / "empty"); }), "GPT2_JOB_TOKEN_FILE="));
}

TEST_CASE("keys as text, and HMACs of parts") {
  const Key key = random_key();
  CHECK(key_of_hex(to_hex(key)) == key);
  CHECK(key != random_key());
  for (const std::string& bad : {std::string(), to_hex(key).substr(1), to_hex(key) + "00", std::string(64, 'x')}) {
    CHECK_FALSE(key_of_hex(bad).has_value());
  }
  // Python: hmac.new(bytes(range(32)), pack("<Q", 2) + b"ab" + pack("<Q", 1) + b"c", "sha256").hexdigest()
  Key numbers;
  std::iota(numbers.begin(), numbers.end(), static_cast<unsigned char>(0));
  CHECK(to_hex(derived_key(numbers, {"ab", "c"})) ==
        "b0c00b9c008947559cd4524980c14546efc123c1f72f20f7333f624bee6bc469");
  CHECK(hmac(key, {"ab", "c"}) != hmac(key, {"a", "bc"}));
  CHECK(hmac(key, {"ab"}) != hmac(key, {"ab", ""}));
  CHECK(hmac(key, {"ab"}) != hmac(random_key(), {"ab"}));
}

TEST_CASE("a handshake needs the same secret and purpose on both sides") {
  const Key key = random_key();
  CHECK(agree(key, Handshake::Purpose::joining, key, Handshake::Purpose::joining));
  CHECK(agree(key, Handshake::Purpose::mesh, key, Handshake::Purpose::mesh));
  CHECK_FALSE(agree(key, Handshake::Purpose::joining, key, Handshake::Purpose::mesh));
  CHECK_FALSE(agree(key, Handshake::Purpose::joining, random_key(), Handshake::Purpose::joining));
}

TEST_CASE("frames after a handshake: none can be altered, repeated, left out or sent back") {
  auto [called, caller] = sealed_pair(random_key());
  const std::string large(300000, 'x'); // more than the socket holds
  for (int i = 0; i < 3; ++i) {
    caller.queue(FrameType::message, large + std::to_string(i));
    std::optional<Frame> frame;
    while (!frame && !called.ended()) caller.flush(), called.receive(), frame = called.next();
    REQUIRE(frame.has_value());
    CHECK(frame->body == large + std::to_string(i));
    called.queue(FrameType::heartbeat, ""), called.flush();
    CHECK(wait_for_frame(caller, Clock::now() + 5s)->type == FrameType::heartbeat);
  }

  const Key key = random_key();
  FrameMac seal(key), of_other_side(random_key());
  const std::string first = to_bytes(FrameType::message, "first", &seal),
                    second = to_bytes(FrameType::message, "2", &seal);
  const auto frames_of = [&](const std::string& bytes) { // how many are read before the reader gives up
    FrameReader reader;
    reader.expect_macs(key);
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

TEST_CASE("the mesh connects ranks, and nobody else") {
  const Key key = random_key();
  std::vector<Socket> listeners;
  MeshPlan plan{.rank = 0, .key = key, .endpoints = {}};
  for (int rank = 0; rank < 3; ++rank) {
    listeners.push_back(listen_at(0, Reach::this_host));
    plan.endpoints.push_back({"127.0.0.1", local_port(listeners.back())});
  }
  const Stranger web(plan.endpoints[0].port, "GET / HTTP/1.1\r\n\r\n", false),
      silent(plan.endpoints[1].port, "", false);
  const std::string as_rank_2 = Packer().put(2).put(0).bytes();
  std::vector<Handshake> foreign; // before the ranks, and with all but the secret or the purpose
  foreign.push_back(
      Handshake::as_client(call(plan.endpoints[0].port), random_key(), Handshake::Purpose::mesh, as_rank_2));
  foreign.push_back(Handshake::as_client(call(plan.endpoints[0].port), key, Handshake::Purpose::joining, as_rank_2));
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
    meshes[index] = connect_mesh(
        mine, listeners[index], [] { return false; }, problem);
    CHECK(problem == "");
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    for (size_t other = 0; other < 3; ++other) {
      CHECK(meshes[rank][other].is_open() == (rank != other));
      if (rank < other) {
        const char sent = static_cast<char>('a' + rank);
        char got = 0;
        CHECK(::send(meshes[rank][other].descriptor(), &sent, 1, 0) == 1);
        pollfd awaited = {meshes[other][rank].descriptor(), POLLIN, 0};
        wait_for_any({&awaited, 1}, 1s);
        CHECK(::recv(meshes[other][rank].descriptor(), &got, 1, 0) == 1);
        CHECK(got == sent);
      }
    }
  }
}
