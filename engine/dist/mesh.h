// A TCP connection between each pair of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/dist/meeting_place.h"
#include "engine/dist/rendezvous.h"
#include "engine/dist/sockets.h"

namespace gpt2 {

struct MeshPlan {
  int rank;
  uint64_t token;
  std::vector<Endpoint> endpoints; // by rank: where it listens
};

// Every rank calls it at the same time. Each connects to all lower ranks and is called by all higher ones. By rank;
// closed for this one. No data may travel before all ranks have returned. `cancelled` ends it with a closed socket
// somewhere; `problem` then says which rank could not be reached, if that was it.
std::vector<Socket> connect_mesh(const MeshPlan& plan, const Socket& listener, const Cancelled& cancelled,
                                 std::string& problem);

} // namespace gpt2
