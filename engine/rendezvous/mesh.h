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
  std::vector<Endpoint> endpoints; // listening addresses by rank
};

// Collective. Each rank connects to all lower ranks and accepts all higher ones, with a handshake each. Returns sockets
// by rank; this rank's own is closed. Ranks may send only after all have returned; their data carries no MAC. On
// failure or if `cancelled`, further sockets are closed; `problem` says which rank could not be reached.
std::vector<Socket> connect_mesh(const MeshPlan& plan, const Socket& listener, const Cancelled& cancelled,
                                 std::string& problem);

} // namespace gpt2
