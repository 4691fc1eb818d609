#include "engine/dist/mesh.h"

#include <poll.h>

#include <algorithm>
#include <list>

#include "engine/dist/wire.h"

namespace gpt2 {
namespace {

using std::chrono::milliseconds;

std::string hello_of(const MeshPlan& plan, int from, int to) {
  return Packer().put(plan.token).put(from).put(to).bytes();
}

struct Caller {
  Connection connection;
  Clock::time_point patience_ends;
};

// The higher rank that a hello comes from; 0 (nobody's number here) for a stranger.
int rank_of(const Frame& hello, const MeshPlan& plan) {
  for (int rank = plan.rank + 1; rank < static_cast<int>(plan.endpoints.size()); ++rank) {
    if (hello.type == FrameType::hello && hello.body == hello_of(plan, rank, plan.rank)) return rank;
  }
  return 0;
}

} // namespace

std::vector<Socket> connect_mesh(const MeshPlan& plan, const Socket& listener, const Cancelled& cancelled,
                                 std::string& problem) {
  const int ranks = static_cast<int>(plan.endpoints.size());
  const std::string proof = Packer().put(proof_of(plan.token)).bytes();
  std::vector<Connection> connections(static_cast<size_t>(ranks));
  const auto finish = [&] {
    std::vector<Socket> sockets;
    for (Connection& connection : connections) sockets.push_back(connection.take_socket());
    return sockets;
  };

  // The kernel takes calls for a rank that is not yet listening to them: nobody waits for another one here.
  for (int rank = 0; rank < plan.rank; ++rank) {
    const auto& [host, port] = plan.endpoints[static_cast<size_t>(rank)];
    Socket socket = connect_to(host, port, Clock::now() + std::chrono::seconds(30), cancelled, problem);
    if (!socket.is_open()) return finish();
    Connection& connection = connections[static_cast<size_t>(rank)] = Connection(std::move(socket));
    connection.queue(FrameType::hello, hello_of(plan, plan.rank, rank));
    connection.flush();
  }

  std::list<Caller> callers;
  for (int missing = ranks - 1 - plan.rank; missing > 0 && !cancelled();) {
    wait_until_ready(listener.descriptor(), POLLIN, milliseconds(callers.empty() ? 50 : 1));
    for (Socket socket = accept_from(listener); socket.is_open(); socket = accept_from(listener)) {
      callers.push_back({Connection(std::move(socket)), Clock::now() + kHandshakeTime});
    }
    callers.remove_if([&](Caller& caller) {
      caller.connection.receive();
      const auto hello = caller.connection.next();
      if (!hello) return caller.connection.ended() || Clock::now() > caller.patience_ends;
      const int rank = rank_of(*hello, plan);
      Connection& place = connections[static_cast<size_t>(rank)];
      if (rank == 0 || place.socket().is_open()) return true;
      caller.connection.queue(FrameType::welcome, proof);
      caller.connection.flush();
      place = std::move(caller.connection);
      --missing;
      return true;
    });
  }

  for (int rank = 0; rank < plan.rank; ++rank) {
    Connection& connection = connections[static_cast<size_t>(rank)];
    const auto answer = wait_for_frame(connection, Clock::time_point::max(), cancelled);
    if (answer && answer->type == FrameType::welcome && answer->body == proof) continue;
    problem = "no answer from rank " + std::to_string(rank);
    connection.close();
    break;
  }
  return finish();
}

} // namespace gpt2
