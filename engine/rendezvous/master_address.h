// Address of rank 0, and how the other ranks get it and the secret: from a token and computed ports, from a file, or by
// an MPI broadcast.
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

struct FoundMaster {
  Key key;
  std::vector<Endpoint> endpoints; // rank 0 listens at one of them
};

class MasterAddress {
 public:
  // `token`: a key that all ranks have; without it rank 0 generates a key and publishes it with its address.
  static std::unique_ptr<MasterAddress> of(const Launch& launch, const std::optional<Key>& token);
  virtual ~MasterAddress() = default;

  virtual Socket listen(const Key& key) = 0;     // rank 0: listens and publishes the address
  virtual void close() {}                        // rank 0: all ranks have joined
  virtual std::optional<FoundMaster> find() = 0; // other ranks, at every attempt; nullopt: not published yet
  virtual std::string description() const = 0;   // "node3, port 4000"
};

// 16 different ports in 20000..51999, from the name of the job.
std::vector<int> candidate_ports(const std::string& job, int avoid_port);

} // namespace gpt2
