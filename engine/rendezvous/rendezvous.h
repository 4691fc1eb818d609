// Connects the ranks of a job: rank 0 listens, the others connect to it. Afterwards every rank has a connection to rank
// 0 and the list of all ranks.
//
//   rank r                                      rank 0
//          handshake (handshake.h)         <->
//   joined                                 -->  from here on a lost connection is an error
//                                          <--  roster, after all have joined; or refused: the reason
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "engine/network/connection.h"
#include "engine/rendezvous/launcher.h"
#include "engine/rendezvous/messages.h"

namespace gpt2 {

std::string to_string(int rank, const Member& member); // "rank 3 (node7, process 4711)"
std::string seconds_text(Clock::duration duration);    // "120 s"

struct Rendezvous {
  std::vector<Member> members;         // by rank
  std::vector<Connection> connections; // by rank; ranks other than 0 are connected to rank 0 only
  Key key = {};                        // the secret
  bool on_one_host = false;            // loopback suffices
};

// Throws Error(communication) at the deadline: rank 0 names the missing ranks, the others the address that did not
// answer.
Rendezvous rendezvous(const Launch& launch, std::chrono::milliseconds limit,
                      const Environment& environment = process_environment());

} // namespace gpt2
