// Accepts connections and runs their handshakes. A pending connection is limited to kHandshakeTime and kHandshakeBytes;
// above the limit of pending connections the oldest is dropped.
#pragma once

#include <chrono>
#include <list>
#include <string>
#include <vector>

#include "engine/network/handshake.h"

namespace gpt2 {

constexpr auto kHandshakeTime = std::chrono::seconds(2);

class Acceptor {
 public:
  Acceptor(const Socket& listener, const Key& key, Handshake::Purpose purpose, int expected);

  struct Peer {
    Connection connection; // authenticated
    std::string identity;
  };
  std::vector<Peer> receive(); // accepts, advances all handshakes, returns those that completed

  std::vector<pollfd> awaited() const; // for wait_for_any(), then receive()
  bool lacks_descriptors() const { return lacks_descriptors_; }

 private:
  struct Pending {
    Handshake handshake;
    Clock::time_point drop_at;
  };
  void serve(std::vector<Peer>& peers);
  void accept();

  const Socket& listener_;
  const Key key_;
  const Handshake::Purpose purpose_;
  const size_t most_;
  std::list<Pending> pending_; // oldest first
  bool lacks_descriptors_ = false;
};

} // namespace gpt2
