// How the ranks of a job find each other: rank 0 listens, the others come to it, and all leave with a connection to
// rank 0 and a list of who is there.
//
//   rank r                                      rank 0
//   hello: token, nonce, rank, ranks, who  -->
//                                          <--  welcome: proof that it knows the token
//   joined                                 -->  from here on its end is an error
//                                          <--  roster, once all have joined; or refused: why nobody trains
//
// Whoever says something else, a wrong token or nothing for two seconds is dropped; the others do not notice.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/dist/connection.h"
#include "engine/dist/launch.h"

namespace gpt2 {

struct Member {
  std::string host; // name
  int process = 0;
  std::string address; // as numbers, where the others reach it; empty: on the host of rank 0
};
std::string to_string(int rank, const Member& member); // "rank 3 (node7, process 4711)"

struct Meeting {
  std::vector<Member> members;         // by rank
  std::vector<Connection> connections; // by rank; a rank other than 0 has one to rank 0 only
  uint64_t token = 0;
  bool on_one_host = false; // by the launcher's word: connections need not leave the host
};

// From the job's text, the user and, where there is one, the variable GPT2_JOB_TOKEN.
uint64_t job_token(const Launch& launch, const Environment& environment);
uint64_t proof_of(uint64_t token); // what only one who knows the token can answer

// Throws Error(communication): on rank 0 with the ranks that are missing at the deadline, on the others with the
// address that did not answer.
Meeting meet(const Launch& launch, std::chrono::milliseconds limit,
             const Environment& environment = process_environment());

constexpr auto kHandshakeTime = std::chrono::seconds(2); // for each word of a handshake

} // namespace gpt2
