// Address of rank 0, and how the other ranks get it and the secret: from a token and computed ports, from a file, or by
// an MPI broadcast.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/network/secret.h"
#include "engine/network/sockets.h"
#include "engine/rendezvous/launcher.h"
#include "engine/rendezvous/published_file.h"

namespace gpt2 {

struct FoundMaster {
  Key key;
  std::vector<Endpoint> endpoints; // rank 0 listens at one of them
};

class MasterAddress {
 public:
  // `token`: a key that all ranks have; without it rank 0 generates a key and publishes it with its address.
  MasterAddress(const Launch& launch, const std::optional<Key>& token);

  Socket listen(const Key& key);     // rank 0: listens and publishes the address
  void close();                      // rank 0: all ranks have joined
  std::optional<FoundMaster> find(); // other ranks, at every attempt; nullopt: not published yet
  std::string description() const;   // "node3, port 4000"

 private:
  enum class Way {
    computed, // with a token all ranks compute host, ports and key
    file,     // rank 0 publishes port, addresses and key
    mpi,      // likewise
  };
  std::string listens_at() const;
  std::optional<Publication> published();

  const std::optional<Key> token_;
  const int ranks_;
  Way way_ = Way::file;
  Reach reach_;
  std::string host_;       // as the other ranks resolve it; empty: all addresses of rank 0, published
  std::vector<int> ports_; // rank 0 listens at the first free one; 0: any
  std::optional<PublishedFile> file_;
  std::optional<Publication> from_mpi_;
};

// 16 different ports in 20000..51999, from the name of the job.
std::vector<int> candidate_ports(const std::string& job, int avoid_port);

} // namespace gpt2
