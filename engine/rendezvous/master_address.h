// Where rank 0 waits for the others, and how these find it and the secret: by a token and ports that all can compute,
// by a file, or by a message over MPI.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/network/secret.h"
#include "engine/network/sockets.h"
#include "engine/rendezvous/launcher.h"

namespace gpt2 {

struct Invitation {
  Key key;
  std::vector<Endpoint> endpoints; // where rank 0 may be
};

class MeetingPlace {
 public:
  // `token`: a key that all ranks have already; without one rank 0 makes a new key, and the place carries it.
  static std::unique_ptr<MeetingPlace> of(const Launch& launch, const std::optional<Key>& token);
  virtual ~MeetingPlace() = default;

  virtual Socket listen(const Key& key) = 0;    // rank 0: from now on it can be found
  virtual void close() {}                       // rank 0: all are here
  virtual std::optional<Invitation> find() = 0; // the others, at every attempt; nothing: rank 0 is not there yet
  virtual std::string description() const = 0;  // of where the others connect: "node3, port 4000"
};

// 16 different ports in 20000..51999, from the public name of the job.
std::vector<int> candidate_ports(const std::string& job, int avoid_port);

} // namespace gpt2
