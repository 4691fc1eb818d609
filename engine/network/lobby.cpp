#include "engine/network/lobby.h"

namespace gpt2 {
namespace {

constexpr size_t kMostStrangers = 256; // beside the ranks that are expected

} // namespace

Lobby::Lobby(const Socket& listener, const Key& key, Purpose purpose, int expected)
    : listener_(listener), key_(key), purpose_(purpose), most_(kMostStrangers + static_cast<size_t>(expected)) {}

std::vector<Lobby::Guest> Lobby::receive() {
  std::vector<Guest> guests;
  serve(guests); // before any of them may have to give way
  accept();
  serve(guests);
  return guests;
}

void Lobby::serve(std::vector<Guest>& guests) {
  strangers_.remove_if([&](Stranger& stranger) {
    const Handshake::State state = stranger.handshake.advance();
    if (state == Handshake::State::under_way) return Clock::now() >= stranger.leaves_at;
    if (state == Handshake::State::done) {
      guests.push_back({stranger.handshake.take_connection(), stranger.handshake.who()});
    }
    return true;
  });
}

void Lobby::accept() {
  for (size_t accepted = 0; accepted < most_; ++accepted) {
    Socket socket = accept_from(listener_, &lacks_descriptors_);
    if (!socket.is_open() && !lacks_descriptors_) return; // nobody waits
    if (!strangers_.empty() && (lacks_descriptors_ || strangers_.size() >= most_)) {
      strangers_.pop_front();
    } else if (lacks_descriptors_) {
      return; // until one of this process's own is closed
    }
    if (socket.is_open()) {
      strangers_.push_back({Handshake::as_called(std::move(socket), key_, purpose_), Clock::now() + kHandshakeTime});
    }
  }
}

// Without a free descriptor the listener would be ready all the time: the caller's time limit decides when to try
// again.
void Lobby::add_to(std::vector<pollfd>& descriptors) const {
  if (!lacks_descriptors_) descriptors.push_back({listener_.descriptor(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) {
    descriptors.push_back({stranger.handshake.connection().socket().descriptor(), POLLIN, 0});
  }
}

} // namespace gpt2
