// A TCP connection between each pair of ranks.
#pragma once

#include <string>
#include <vector>

#include "engine/network/secret.h"
#include "engine/network/sockets.h"
#include "engine/rendezvous/launcher.h"

namespace gpt2 {

struct MeshPlan {
  int rank;
  Key key;
  std::vector<Endpoint> endpoints; // by rank: where it listens
};

// Every rank calls it at the same time. Each connects to all lower ranks and is called by all higher ones; both prove
// the secret by a handshake. By rank; closed for this one. No data may travel before all ranks have returned, and the
// data that does carries no MAC. `cancelled` ends it with a closed socket somewhere; `problem` then says which rank
// could not be reached, if that was the reason.
std::vector<Socket> connect_mesh(const MeshPlan& plan, const Socket& listener, const Cancelled& cancelled,
                                 std::string& problem);

} // namespace gpt2
