#include "engine/rendezvous/mesh.h"

#include <algorithm>
#include <thread>

#include "engine/network/acceptor.h"
#include "engine/network/wire.h"

namespace gpt2 {
namespace {

std::string identity(int from, int to) { return Packer().put(from).put(to).bytes(); }

// Connects again after a failed handshake: a slow lower rank may have dropped the connection. Closed: unreachable, or
// cancelled.
Socket call(const MeshPlan& plan, int rank, const Cancelled& cancelled, std::string& problem) {
  const auto& [host, port] = plan.endpoints[static_cast<size_t>(rank)];
  while (!cancelled()) {
    Socket socket = connect_to(host, port, Clock::now() + std::chrono::seconds(30), cancelled, problem);
    if (!socket.is_open()) return socket;
    Handshake handshake =
        Handshake::as_client(std::move(socket), plan.key, Handshake::Purpose::mesh, identity(plan.rank, rank));
    if (handshake.finish(Clock::time_point::max(), cancelled)) return handshake.take_connection().take_socket();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return Socket();
}

} // namespace

std::vector<Socket> connect_mesh(const MeshPlan& plan, const Socket& listener, const Cancelled& cancelled,
                                 std::string& problem) {
  const auto ranks = static_cast<int>(plan.endpoints.size());
  std::vector<Socket> sockets(plan.endpoints.size());
  // Rank 0 accepts at once, rank 1 when it is connected to rank 0, ...: no ranks wait for each other in a circle.
  for (int rank = 0; rank < plan.rank; ++rank) {
    Socket& socket = sockets[static_cast<size_t>(rank)];
    socket = call(plan, rank, cancelled, problem);
    if (!socket.is_open()) return sockets;
  }
  Acceptor acceptor(listener, plan.key, Handshake::Purpose::mesh, ranks);
  const auto is_missing = [&](const Socket& socket) { return !socket.is_open(); };
  while (std::any_of(sockets.begin() + plan.rank + 1, sockets.end(), is_missing) && !cancelled()) {
    std::vector<pollfd> descriptors = acceptor.awaited();
    wait_for_any(descriptors, kCancelledEvery);
    for (Acceptor::Peer& peer : acceptor.receive()) {
      for (int rank = plan.rank + 1; rank < ranks; ++rank) {
        if (peer.identity == identity(rank, plan.rank))
          sockets[static_cast<size_t>(rank)] = peer.connection.take_socket();
      }
    }
  }
  return sockets;
}

} // namespace gpt2
