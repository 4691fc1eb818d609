#include "engine/rendezvous/mesh.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "engine/network/acceptor.h"
#include "engine/network/wire.h"

namespace gpt2 {
namespace {

using std::chrono::milliseconds;

class Mesh {
 public:
  Mesh(const MeshPlan& plan, const Socket& listener)
      : plan_(plan),
        acceptor_(listener, plan.key, Purpose::mesh, static_cast<int>(plan.endpoints.size())),
        calls_(static_cast<size_t>(plan.rank)),
        sockets_(plan.endpoints.size()) {}

  std::vector<Socket> connect(const Cancelled& cancelled, std::string& problem) {
    while (count_missing() > 0 && !cancelled()) {
      for (int rank = 0; rank < plan_.rank; ++rank) {
        if (!advance_call(rank, cancelled, problem)) return std::move(sockets_);
      }
      for (Acceptor::Peer& peer : acceptor_.receive()) take(peer);
      wait();
    }
    return std::move(sockets_);
  }

 private:
  std::string identity(int from, int to) const { return Packer().put(from).put(to).bytes(); }

  std::ptrdiff_t count_missing() const {
    return std::count_if(sockets_.begin(), sockets_.end(), [](const Socket& socket) { return !socket.is_open(); }) - 1;
  }

  // Connects again after a failed handshake: a slow lower rank may have dropped the connection. False: unreachable.
  bool advance_call(int rank, const Cancelled& cancelled, std::string& problem) {
    auto& call = calls_[static_cast<size_t>(rank)];
    Socket& socket = sockets_[static_cast<size_t>(rank)];
    if (socket.is_open()) return true;
    if (!call) {
      const auto& [host, port] = plan_.endpoints[static_cast<size_t>(rank)];
      Socket opened = connect_to(host, port, Clock::now() + std::chrono::seconds(30), cancelled, problem);
      if (!opened.is_open()) return false;
      call.emplace(Handshake::as_client(std::move(opened), plan_.key, Purpose::mesh, identity(plan_.rank, rank)));
    }
    const Handshake::State state = call->advance();
    if (state == Handshake::State::done) socket = call->take_connection().take_socket();
    if (state == Handshake::State::failed) std::this_thread::sleep_for(milliseconds(20));
    if (state != Handshake::State::in_progress) call.reset();
    return true;
  }

  void take(Acceptor::Peer& peer) {
    for (int rank = plan_.rank + 1; rank < static_cast<int>(sockets_.size()); ++rank) {
      Socket& socket = sockets_[static_cast<size_t>(rank)];
      if (peer.identity == identity(rank, plan_.rank)) socket = peer.connection.take_socket();
    }
  }

  void wait() const {
    std::vector<pollfd> descriptors;
    acceptor_.add_to(descriptors);
    for (const auto& call : calls_) {
      if (call) descriptors.push_back({call->connection().socket().descriptor(), POLLIN, 0});
    }
    ::poll(descriptors.data(), descriptors.size(), count_missing() > 0 ? 50 : 0);
  }

  const MeshPlan& plan_;
  Acceptor acceptor_;
  std::vector<std::optional<Handshake>> calls_; // by rank
  std::vector<Socket> sockets_;                 // by rank
};

} // namespace

std::vector<Socket> connect_mesh(const MeshPlan& plan, const Socket& listener, const Cancelled& cancelled,
                                 std::string& problem) {
  return Mesh(plan, listener).connect(cancelled, problem);
}

} // namespace gpt2
