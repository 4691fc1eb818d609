#include "engine/rendezvous/mesh.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "engine/network/lobby.h"
#include "engine/network/wire.h"

namespace gpt2 {
namespace {

using std::chrono::milliseconds;

class Mesh {
 public:
  Mesh(const MeshPlan& plan, const Socket& listener)
      : plan_(plan),
        lobby_(listener, plan.key, Purpose::mesh, static_cast<int>(plan.endpoints.size())),
        calls_(static_cast<size_t>(plan.rank)),
        sockets_(plan.endpoints.size()) {}

  std::vector<Socket> connect(const Cancelled& cancelled, std::string& problem) {
    while (count_missing() > 0 && !cancelled()) {
      for (int rank = 0; rank < plan_.rank; ++rank) {
        if (!advance_call(rank, cancelled, problem)) return std::move(sockets_);
      }
      for (Lobby::Guest& guest : lobby_.receive()) take(guest);
      wait();
    }
    return std::move(sockets_);
  }

 private:
  std::string words(int from, int to) const { return Packer().put(from).put(to).bytes(); }

  std::ptrdiff_t count_missing() const {
    return std::count_if(sockets_.begin(), sockets_.end(), [](const Socket& socket) { return !socket.is_open(); }) - 1;
  }

  // A lower rank that was too slow to answer before it dropped the call is called again. False: it cannot be reached.
  bool advance_call(int rank, const Cancelled& cancelled, std::string& problem) {
    auto& call = calls_[static_cast<size_t>(rank)];
    Socket& socket = sockets_[static_cast<size_t>(rank)];
    if (socket.is_open()) return true;
    if (!call) {
      const auto& [host, port] = plan_.endpoints[static_cast<size_t>(rank)];
      Socket opened = connect_to(host, port, Clock::now() + std::chrono::seconds(30), cancelled, problem);
      if (!opened.is_open()) return false;
      call.emplace(Handshake::as_caller(std::move(opened), plan_.key, Purpose::mesh, words(plan_.rank, rank)));
    }
    const Handshake::State state = call->advance();
    if (state == Handshake::State::done) socket = call->take_connection().take_socket();
    if (state == Handshake::State::failed) std::this_thread::sleep_for(milliseconds(20));
    if (state != Handshake::State::under_way) call.reset();
    return true;
  }

  void take(Lobby::Guest& guest) {
    for (int rank = plan_.rank + 1; rank < static_cast<int>(sockets_.size()); ++rank) {
      Socket& socket = sockets_[static_cast<size_t>(rank)];
      if (guest.who == words(rank, plan_.rank)) socket = guest.connection.take_socket();
    }
  }

  void wait() const {
    std::vector<pollfd> descriptors;
    lobby_.add_to(descriptors);
    for (const auto& call : calls_) {
      if (call) descriptors.push_back({call->connection().socket().descriptor(), POLLIN, 0});
    }
    ::poll(descriptors.data(), descriptors.size(), count_missing() > 0 ? 50 : 0);
  }

  const MeshPlan& plan_;
  Lobby lobby_;
  std::vector<std::optional<Handshake>> calls_; // by rank
  std::vector<Socket> sockets_;                 // by rank
};

} // namespace

std::vector<Socket> connect_mesh(const MeshPlan& plan, const Socket& listener, const Cancelled& cancelled,
                                 std::string& problem) {
  return Mesh(plan, listener).connect(cancelled, problem);
}

} // namespace gpt2
