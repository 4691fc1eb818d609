#include "engine/rendezvous/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <optional>
#include <thread>

#include "engine/base/error.h"
#include "engine/network/lobby.h"
#include "engine/rendezvous/job_token.h"
#include "engine/rendezvous/master_address.h"
#include "engine/system/process.h"

namespace gpt2 {
namespace {

using std::chrono::milliseconds;
constexpr uint32_t kVersion = 2; // of what ranks send each other

[[noreturn]] void fail(const Launch& launch, const std::string& what) {
  if (launch.program == "torchrun" && !launch.local_rank)
    throw Error(
        ExitCode::communication, what,
        "RANK=" + std::to_string(launch.rank) + " and WORLD_SIZE=" + std::to_string(launch.ranks) +
            " are set, LOCAL_RANK is not: RANK counts processes, not nodes; torchrun --no-python sets all three");
  throw Error(ExitCode::communication, what,
              "has " + launch.program + " started all " + std::to_string(launch.ranks) +
                  " ranks, is there a firewall between them, is --master right? see docs/cluster.md");
}

std::string seconds_of(milliseconds limit) {
  return limit.count() % 1000 == 0 ? std::to_string(limit.count() / 1000) + " s"
                                   : std::to_string(limit.count()) + " ms";
}

Member this_process() { return {host_name(), static_cast<int>(::getpid()), ""}; }

// ---- rank 0 ----

struct Guest {
  Connection connection;
  Hello hello;
  Clock::time_point leaves_at; // unless it has joined
  bool joined = false, dropped = false;
};

// The address at which other hosts find a guest. One that came from this very host is where rank 0 is: the address that
// it used (127.0.0.1, as a rule) would mean another host elsewhere.
std::string address_for_others(const Connection& connection) {
  const std::string from = peer_address(connection.socket());
  return from == local_address(connection.socket()) || from.starts_with("127.") || from == "::1" ? "" : from;
}

class Reception {
 public:
  Reception(const Launch& launch, const std::optional<Key>& token, milliseconds limit)
      : launch_(launch),
        ranks_(launch.ranks),
        key_(token ? *token : random_key()),
        limit_(limit),
        place_(MeetingPlace::of(launch, token)),
        joined_(static_cast<size_t>(ranks_), nullptr) {}

  Meeting receive_all() {
    const StopSignal stop;
    if (launch_.master != "mpi:") stop.defer(); // the file is removed first; MPI leaves none, and may wait for long
    const Clock::time_point deadline = Clock::now() + limit_;
    const Socket listener = place_->listen(key_);
    Lobby lobby(listener, key_, Purpose::joining, ranks_);
    while (count_missing() > 0 && !stop.requested()) {
      if (Clock::now() >= deadline) {
        end(missing_ranks() + " did not join within " + seconds_of(limit_) +
            (lobby.lacks_descriptors() ? " (rank 0 has too many open files: see ulimit -n)" : ""));
      }
      wait(lobby, deadline);
      for (Lobby::Guest& guest : lobby.receive()) greet(std::move(guest));
      for (Guest& guest : guests_) serve(guest);
      guests_.remove_if([](const Guest& guest) { return guest.dropped; });
    }
    place_->close();
    stop.answer_at_once();
    return close_list();
  }

 private:
  std::ptrdiff_t count_missing() const { return std::count(joined_.begin() + 1, joined_.end(), nullptr); }

  std::string missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 1; rank < ranks_; ++rank) {
      if (!joined_[static_cast<size_t>(rank)]) missing.push_back(rank);
    }
    std::string text = missing.size() == 1 ? "rank " : "ranks ";
    constexpr size_t kNamed = 16;
    for (size_t i = 0; i < std::min(missing.size(), kNamed); ++i) {
      if (i > 0) text += i + 1 == missing.size() ? " and " : ", ";
      text += std::to_string(missing[i]);
    }
    return missing.size() > kNamed ? text + " and " + std::to_string(missing.size() - kNamed) + " more" : text;
  }

  void wait(const Lobby& lobby, Clock::time_point deadline) const {
    std::vector<pollfd> descriptors;
    lobby.add_to(descriptors);
    for (const Guest& guest : guests_) descriptors.push_back({guest.connection.socket().descriptor(), POLLIN, 0});
    const Clock::duration left =
        std::clamp<Clock::duration>(deadline - Clock::now(), milliseconds(0), milliseconds(100));
    ::poll(descriptors.data(), descriptors.size(), static_cast<int>(std::chrono::ceil<milliseconds>(left).count()));
  }

  void greet(Lobby::Guest&& arrived) {
    const auto hello = read_hello(arrived.who);
    if (!hello) return;
    guests_.push_back({std::move(arrived.connection), *hello, Clock::now() + kHandshakeTime});
    const std::string who = to_string(hello->rank, hello->from);
    if (hello->version != kVersion)
      end(who + " speaks version " + std::to_string(hello->version) + " of the ranks' protocol, rank 0 version " +
          std::to_string(kVersion));
    if (hello->ranks != ranks_ || hello->rank < 0 || hello->rank >= ranks_) {
      end(who + " counts " + std::to_string(hello->ranks) + " ranks, rank 0 counts " + std::to_string(ranks_));
    }
  }

  void serve(Guest& guest) {
    guest.connection.receive();
    for (auto frame = guest.connection.next(); frame; frame = guest.connection.next()) {
      if (frame->type == FrameType::joined && !guest.joined) admit(guest);
    }
    guest.connection.flush();
    if (guest.joined && guest.connection.ended()) {
      end(to_string(guest.hello.rank, guest.hello.from) + " ended while the others were still joining");
    }
    if (!guest.joined && (guest.connection.ended() || Clock::now() >= guest.leaves_at)) guest.dropped = true;
  }

  void admit(Guest& guest) {
    refuse_double(guest.hello);
    guest.joined = true;
    joined_[static_cast<size_t>(guest.hello.rank)] = &guest;
  }

  void refuse_double(const Hello& hello) {
    const Guest* const other = joined_[static_cast<size_t>(hello.rank)];
    if (hello.rank > 0 && !other) return;
    const Member first = other ? other->hello.from : this_process();
    end("two processes claim to be rank " + std::to_string(hello.rank) + ": process " + std::to_string(first.process) +
        " on " + first.host + " and process " + std::to_string(hello.from.process) + " on " + hello.from.host);
  }

  // All that are here hear the reason, and this process throws it.
  [[noreturn]] void end(const std::string& reason) {
    const Clock::time_point deadline = Clock::now() + kHandshakeTime;
    for (Guest& guest : guests_) {
      guest.connection.queue(FrameType::refused, reason);
      guest.connection.flush();
      while (guest.connection.has_unsent() && Clock::now() < deadline) {
        wait_until_ready(guest.connection.socket().descriptor(), POLLOUT, milliseconds(50));
        guest.connection.flush();
      }
    }
    fail(launch_, reason);
  }

  Meeting close_list() {
    Meeting meeting;
    meeting.key = key_;
    meeting.members.resize(joined_.size()), meeting.connections.resize(joined_.size());
    meeting.members[0] = this_process();
    for (size_t rank = 1; rank < joined_.size(); ++rank) {
      meeting.members[rank] = joined_[rank]->hello.from;
      meeting.members[rank].address = address_for_others(joined_[rank]->connection);
      meeting.connections[rank] = std::move(joined_[rank]->connection);
    }
    for (size_t rank = 1; rank < joined_.size(); ++rank) {
      meeting.connections[rank].queue(FrameType::roster, to_bytes(meeting.members));
      meeting.connections[rank].flush();
    }
    return meeting;
  }

  const Launch& launch_;
  const int ranks_;
  const Key key_;
  const milliseconds limit_;
  const std::unique_ptr<MeetingPlace> place_;
  std::list<Guest> guests_;
  std::vector<Guest*> joined_; // by rank; [0] stays null
};

// ---- the others ----

class Visitor {
 public:
  Visitor(const Launch& launch, const std::optional<Key>& token, milliseconds limit)
      : launch_(launch), limit_(limit), place_(MeetingPlace::of(launch, token)) {}

  Meeting go() {
    const Clock::time_point deadline = Clock::now() + limit_;
    milliseconds pause(20);
    while (Clock::now() < deadline) {
      const auto invitation = place_->find();
      if (!invitation) problem_ = {"rank 0 has not written the file, or this node does not see it"};
      for (const Endpoint& endpoint : invitation ? invitation->endpoints : std::vector<Endpoint>()) {
        if (auto connection = knock(endpoint, invitation->key, std::min(deadline, Clock::now() + kHandshakeTime))) {
          Meeting meeting = stay(std::move(*connection), deadline);
          meeting.key = invitation->key;
          return meeting;
        }
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, milliseconds(500));
    }
    fail(launch_, "rank " + std::to_string(launch_.rank) + " could not reach rank 0 at " + place_->description() +
                      " within " + seconds_of(limit_) + (problem_.text.empty() ? "" : " (" + problem_.text + ")"));
  }

 private:
  std::optional<Connection> knock(const Endpoint& endpoint, const Key& key, Clock::time_point deadline) {
    std::string no_connection;
    Socket socket = connect_to(endpoint.host, endpoint.port, deadline, nullptr, no_connection);
    if (!no_connection.empty() && !problem_.of_handshake) problem_ = {no_connection};
    if (!socket.is_open() || is_connected_to_itself(socket)) return std::nullopt;
    Handshake handshake = Handshake::as_caller(
        std::move(socket), key, Purpose::joining,
        to_bytes(Hello{.version = kVersion, .rank = launch_.rank, .ranks = launch_.ranks, .from = this_process()}));
    if (handshake.finish(deadline)) return handshake.take_connection();
    problem_ = {endpoint.host + " port " + std::to_string(endpoint.port) +
                    " is held by another process, or that has another secret",
                true};
    return std::nullopt;
  }

  Meeting stay(Connection connection, Clock::time_point deadline) const {
    connection.queue(FrameType::joined, "");
    const auto answer = wait_for_frame(connection, deadline + limit_, nullptr); // rank 0 may have begun later
    if (!answer)
      fail(launch_, "rank 0 at " + peer_address(connection.socket()) + " ended while the ranks were joining");
    if (answer->type != FrameType::roster) fail(launch_, answer->body);
    Meeting meeting;
    const auto roster = read_roster(answer->body, launch_.ranks);
    if (!roster) fail(launch_, "rank 0 sent a list of ranks that cannot be read");
    meeting.members = *roster;
    // Where rank 0 is, are those that share its host.
    for (Member& member : meeting.members) {
      if (member.address.empty()) member.address = peer_address(connection.socket());
    }
    meeting.connections.resize(meeting.members.size());
    meeting.connections[0] = std::move(connection);
    return meeting;
  }

  const Launch& launch_;
  const milliseconds limit_;
  const std::unique_ptr<MeetingPlace> place_;
  struct {
    std::string text = {};
    bool of_handshake = false; // says more than the refusals of the other candidate ports
  } problem_;
};

} // namespace

std::string to_string(int rank, const Member& member) {
  return "rank " + std::to_string(rank) + " (" + member.host + ", process " + std::to_string(member.process) + ")";
}

Meeting meet(const Launch& launch, milliseconds limit, const Environment& environment) {
  const std::optional<Key> token = key_of_token(launch, environment);
  Meeting meeting =
      launch.rank == 0 ? Reception(launch, token, limit).receive_all() : Visitor(launch, token, limit).go();
  meeting.on_one_host = on_one_host(launch);
  return meeting;
}

} // namespace gpt2
