#include "engine/rendezvous/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <list>
#include <optional>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/network/acceptor.h"
#include "engine/rendezvous/job_token.h"
#include "engine/rendezvous/master_address.h"
#include "engine/system/process.h"

namespace gpt2 {
namespace {

using std::chrono::milliseconds;
constexpr uint32_t kVersion = 2; // of the protocol between ranks

[[noreturn]] void fail(const Launch& launch, const std::string& what) {
  if (launch.program == "torchrun" && !launch.local_rank)
    throw Error(
        ExitCode::communication, what,
        "RANK=" + std::to_string(launch.rank) + " and WORLD_SIZE=" + std::to_string(launch.ranks) +
            " are set, LOCAL_RANK is not: RANK counts processes, not nodes; torchrun --no-python sets all three");
  throw Error(ExitCode::communication, what,
              "check that " + launch.program + " started all " + std::to_string(launch.ranks) +
                  " ranks, that no firewall separates them, and --master; see docs/cluster.md");
}

Member this_process() { return {host_name(), static_cast<int>(::getpid()), ""}; }

// ---- rank 0 ----

struct JoiningRank {
  Connection connection;
  Hello hello;
  Clock::time_point drop_at; // if it has not joined
  bool joined = false;
};

// Address of a peer for other hosts. Empty for a peer on this host: its address (mostly 127.0.0.1) is not valid
// elsewhere; the other ranks use the address of rank 0.
std::string address_for_others(const Connection& connection) {
  const std::string from = peer_address(connection.socket());
  return from == local_address(connection.socket()) || from.starts_with("127.") || from == "::1" ? "" : from;
}

class JoinServer {
 public:
  JoinServer(const Launch& launch, const std::optional<Key>& token, milliseconds limit)
      : launch_(launch),
        key_(token ? *token : random_key()),
        limit_(limit),
        master_(launch, token),
        joined_(static_cast<size_t>(launch.ranks), nullptr) {}

  Rendezvous wait_for_all() {
    const StopSignal stop;
    if (launch_.master != "mpi:") stop.defer(); // until the file is removed; MPI has no file, and may block for long
    const Clock::time_point deadline = Clock::now() + limit_;
    const Socket listener = master_.listen(key_);
    Acceptor acceptor(listener, key_, Handshake::Purpose::joining, launch_.ranks);
    while (count_missing() > 0 && !stop.requested()) {
      if (Clock::now() >= deadline) {
        abort_join(missing_ranks() + " did not join within " + seconds_text(limit_) +
                   (acceptor.lacks_descriptors() ? " (rank 0 has too many open files: see ulimit -n)" : ""));
      }
      wait(acceptor, deadline);
      for (Acceptor::Peer& peer : acceptor.receive()) add(std::move(peer));
      joining_.remove_if([this](JoiningRank& peer) { return !serve(peer); });
    }
    master_.close();
    stop.answer_at_once();
    return send_roster();
  }

 private:
  std::ptrdiff_t count_missing() const { return std::count(joined_.begin() + 1, joined_.end(), nullptr); }

  std::string missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 1; rank < launch_.ranks; ++rank) {
      if (!joined_[static_cast<size_t>(rank)]) missing.push_back(rank);
    }
    constexpr size_t kNamed = 16;
    if (missing.size() <= kNamed) return (missing.size() == 1 ? "rank " : "ranks ") + listed(missing, ", ", " and ");
    const std::string more = std::to_string(missing.size() - kNamed);
    missing.resize(kNamed);
    return "ranks " + listed(missing) + " and " + more + " more";
  }

  void wait(const Acceptor& acceptor, Clock::time_point deadline) const {
    std::vector<pollfd> descriptors = acceptor.awaited();
    for (const JoiningRank& peer : joining_) descriptors.push_back(peer.connection.awaited());
    wait_for_any(descriptors, std::min<Clock::duration>(deadline - Clock::now(), milliseconds(100)));
  }

  void add(Acceptor::Peer&& arrived) {
    const auto hello = read_hello(arrived.identity);
    if (!hello) return;
    joining_.push_back({std::move(arrived.connection), *hello, Clock::now() + kHandshakeTime});
    const std::string name = to_string(hello->rank, hello->from);
    if (hello->version != kVersion)
      abort_join(name + " speaks version " + std::to_string(hello->version) +
                 " of the ranks' protocol, rank 0 version " + std::to_string(kVersion));
    if (hello->ranks != launch_.ranks || hello->rank < 0 || hello->rank >= launch_.ranks) {
      abort_join(name + " counts " + std::to_string(hello->ranks) + " ranks, rank 0 counts " +
                 std::to_string(launch_.ranks));
    }
  }

  bool serve(JoiningRank& peer) { // false: drop it
    peer.connection.receive();
    for (auto frame = peer.connection.next(); frame; frame = peer.connection.next()) {
      if (frame->type == FrameType::joined && !peer.joined) admit(peer);
    }
    peer.connection.flush();
    if (peer.joined && peer.connection.ended()) {
      abort_join(to_string(peer.hello.rank, peer.hello.from) + " ended while the others were still joining");
    }
    return peer.joined || (!peer.connection.ended() && Clock::now() < peer.drop_at);
  }

  void admit(JoiningRank& peer) {
    const int rank = peer.hello.rank;
    JoiningRank*& place = joined_[static_cast<size_t>(rank)];
    if (place || rank == 0) {
      const Member first = place ? place->hello.from : this_process(), second = peer.hello.from;
      abort_join("two processes claim to be rank " + std::to_string(rank) + ": process " +
                 std::to_string(first.process) + " on " + first.host + " and process " +
                 std::to_string(second.process) + " on " + second.host);
    }
    peer.joined = true;
    place = &peer;
  }

  // Sends the reason to all connected ranks and throws it.
  [[noreturn]] void abort_join(const std::string& reason) {
    for (JoiningRank& peer : joining_) {
      peer.connection.queue(FrameType::refused, reason);
      peer.connection.flush(); // the kernel's buffer is empty, and far larger
    }
    fail(launch_, reason);
  }

  Rendezvous send_roster() {
    Rendezvous joined;
    joined.key = key_;
    joined.members.resize(joined_.size()), joined.connections.resize(joined_.size());
    joined.members[0] = this_process();
    for (size_t rank = 1; rank < joined_.size(); ++rank) {
      joined.members[rank] = joined_[rank]->hello.from;
      joined.members[rank].address = address_for_others(joined_[rank]->connection);
      joined.connections[rank] = std::move(joined_[rank]->connection);
    }
    for (size_t rank = 1; rank < joined_.size(); ++rank) {
      joined.connections[rank].queue(FrameType::roster, to_bytes(joined.members));
      joined.connections[rank].flush();
    }
    return joined;
  }

  const Launch& launch_;
  const Key key_;
  const milliseconds limit_;
  MasterAddress master_;
  std::list<JoiningRank> joining_;
  std::vector<JoiningRank*> joined_; // by rank; [0] stays null
};

// ---- other ranks ----

class JoinClient {
 public:
  JoinClient(const Launch& launch, const std::optional<Key>& token, milliseconds limit)
      : launch_(launch), limit_(limit), master_(launch, token) {}

  Rendezvous join() {
    const Clock::time_point deadline = Clock::now() + limit_;
    milliseconds pause(20);
    while (Clock::now() < deadline) {
      const auto master = master_.find();
      if (!master) problem_ = {"rank 0 has not written the file, or this node does not see it"};
      for (const Endpoint& endpoint : master ? master->endpoints : std::vector<Endpoint>()) {
        if (auto connection = connect(endpoint, master->key, std::min(deadline, Clock::now() + kHandshakeTime))) {
          Rendezvous joined = wait_for_roster(std::move(*connection), deadline);
          joined.key = master->key;
          return joined;
        }
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, milliseconds(500));
    }
    fail(launch_, "rank " + std::to_string(launch_.rank) + " could not reach rank 0 at " + master_.description() +
                      " within " + seconds_text(limit_) + (problem_.text.empty() ? "" : " (" + problem_.text + ")"));
  }

 private:
  std::optional<Connection> connect(const Endpoint& endpoint, const Key& key, Clock::time_point deadline) {
    std::string no_connection;
    Socket socket = connect_to(endpoint.host, endpoint.port, deadline, nullptr, no_connection);
    if (!no_connection.empty() && !problem_.of_handshake) problem_ = {no_connection};
    if (!socket.is_open() || is_connected_to_itself(socket)) return std::nullopt;
    Handshake handshake = Handshake::as_client(
        std::move(socket), key, Handshake::Purpose::joining,
        to_bytes(Hello{.version = kVersion, .rank = launch_.rank, .ranks = launch_.ranks, .from = this_process()}));
    if (handshake.finish(deadline)) return handshake.take_connection();
    problem_ = {endpoint.host + " port " + std::to_string(endpoint.port) +
                    " is in use by another process, or by a rank 0 with another secret",
                true};
    return std::nullopt;
  }

  Rendezvous wait_for_roster(Connection connection, Clock::time_point deadline) const {
    connection.queue(FrameType::joined, "");
    const auto answer = wait_for_frame(connection, deadline + limit_); // rank 0 may have started later
    if (!answer)
      fail(launch_, "rank 0 at " + peer_address(connection.socket()) + " ended while the ranks were joining");
    if (answer->type != FrameType::roster) fail(launch_, answer->body);
    Rendezvous joined;
    const auto roster = read_roster(answer->body, launch_.ranks);
    if (!roster) fail(launch_, "cannot parse the list of ranks from rank 0");
    joined.members = *roster;
    // Ranks on the host of rank 0 have its address.
    for (Member& member : joined.members) {
      if (member.address.empty()) member.address = peer_address(connection.socket());
    }
    joined.connections.resize(joined.members.size());
    joined.connections[0] = std::move(connection);
    return joined;
  }

  const Launch& launch_;
  const milliseconds limit_;
  MasterAddress master_;
  struct {
    std::string text = {};
    bool of_handshake = false; // more specific than refused connections at other candidate ports
  } problem_;
};

} // namespace

std::string seconds_text(Clock::duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  return formatted(seconds < 1 ? "%.1f s" : "%.0f s", seconds);
}

std::string to_string(int rank, const Member& member) {
  return "rank " + std::to_string(rank) + " (" + member.host + ", process " + std::to_string(member.process) + ")";
}

Rendezvous rendezvous(const Launch& launch, milliseconds limit, const Environment& environment) {
  const std::optional<Key> token = key_of_token(launch, environment);
  Rendezvous joined =
      launch.rank == 0 ? JoinServer(launch, token, limit).wait_for_all() : JoinClient(launch, token, limit).join();
  joined.on_one_host = on_one_host(launch);
  return joined;
}

} // namespace gpt2
