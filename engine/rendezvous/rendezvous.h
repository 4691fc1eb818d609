// How the ranks of a job find each other: rank 0 listens, the others connect to it, and all leave with a connection to
// rank 0 and a list of all ranks.
//
//   rank r                                      rank 0
//          handshake (handshake.h)         <->
//   joined                                 -->  from here on its end is an error
//                                          <--  roster, once all have joined; or refused: why nobody trains
//
// Whoever does not prove that it knows the secret within two seconds is dropped; the others do not notice.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "engine/network/connection.h"
#include "engine/rendezvous/launcher.h"
#include "engine/rendezvous/messages.h"

namespace gpt2 {

std::string to_string(int rank, const Member& member); // "rank 3 (node7, process 4711)"

struct Meeting {
  std::vector<Member> members;         // by rank
  std::vector<Connection> connections; // by rank; a rank other than 0 has one to rank 0 only
  Key key = {};                        // the secret
  bool on_one_host = false;            // connections need not leave the host
};

// Throws Error(communication): on rank 0 with the ranks that are missing at the deadline, on the others with the
// address that did not answer.
Meeting meet(const Launch& launch, std::chrono::milliseconds limit,
             const Environment& environment = process_environment());

} // namespace gpt2
