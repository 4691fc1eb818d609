// Where rank 0 waits for the others, and how these find it: a host and ports that all can compute, a shared file, or a
// word over MPI.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/dist/launch.h"
#include "engine/dist/sockets.h"

namespace gpt2 {

struct Endpoint {
  std::string host;
  int port;
};

class MeetingPlace {
 public:
  static std::unique_ptr<MeetingPlace> of(const Launch& launch, uint64_t token);
  virtual ~MeetingPlace() = default;

  virtual Socket listen() = 0;                   // rank 0: from now on it can be found
  virtual void close() {}                        // rank 0: all are here
  virtual std::vector<Endpoint> endpoints() = 0; // the others: where rank 0 may be, asked again at every attempt
  virtual std::string description() const = 0;   // of where the others look: "node3, port 4000"
  uint64_t nonce() const { return nonce_; }      // tells this meeting from earlier ones at the same place

 protected:
  uint64_t nonce_ = 0;
};

// 16 different ports in 20000..51999: rank 0 takes the first free one, the others look at each.
std::vector<int> candidate_ports(uint64_t token, int avoid_port);

} // namespace gpt2
