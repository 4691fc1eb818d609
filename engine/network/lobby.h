// Those who have connected to a listener and have not yet proved that they know the secret. Strangers are cheap: they
// have kHandshakeTime and kHandshakeBytes each, and the oldest of too many gives way to the newest.
#pragma once

#include <poll.h>

#include <chrono>
#include <list>
#include <string>
#include <vector>

#include "engine/network/handshake.h"

namespace gpt2 {

constexpr auto kHandshakeTime = std::chrono::seconds(2);

class Lobby {
 public:
  Lobby(const Socket& listener, const Key& key, Purpose purpose, int expected);

  struct Guest {
    Connection connection; // sealed
    std::string who;
  };
  std::vector<Guest> receive(); // accepts and serves all; returns those that have proved themselves now

  void add_to(std::vector<pollfd>& descriptors) const; // what receive() should be called for
  bool lacks_descriptors() const { return lacks_descriptors_; }

 private:
  struct Stranger {
    Handshake handshake;
    Clock::time_point leaves_at;
  };
  void serve(std::vector<Guest>& guests);
  void accept();

  const Socket& listener_;
  const Key key_;
  const Purpose purpose_;
  const size_t most_;
  std::list<Stranger> strangers_; // oldest first
  bool lacks_descriptors_ = false;
};

} // namespace gpt2
