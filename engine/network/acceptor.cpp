#include "engine/network/acceptor.h"

namespace gpt2 {
namespace {

constexpr size_t kMostPending = 256; // in addition to the expected ranks

} // namespace

Acceptor::Acceptor(const Socket& listener, const Key& key, Handshake::Purpose purpose, int expected)
    : listener_(listener), key_(key), purpose_(purpose), most_(kMostPending + static_cast<size_t>(expected)) {}

std::vector<Acceptor::Peer> Acceptor::receive() {
  std::vector<Peer> peers;
  serve(peers); // before accept() may drop the oldest
  accept();
  serve(peers);
  return peers;
}

void Acceptor::serve(std::vector<Peer>& peers) {
  pending_.remove_if([&](Pending& pending) {
    const Handshake::State state = pending.handshake.advance();
    if (state == Handshake::State::in_progress) return Clock::now() >= pending.drop_at;
    if (state == Handshake::State::done) {
      peers.push_back({pending.handshake.take_connection(), pending.handshake.identity()});
    }
    return true;
  });
}

void Acceptor::accept() {
  for (size_t accepted = 0; accepted < most_; ++accepted) {
    Socket socket = accept_from(listener_, &lacks_descriptors_);
    if (!socket.is_open() && !lacks_descriptors_) return; // no connection waits
    if (!pending_.empty() && (lacks_descriptors_ || pending_.size() >= most_)) {
      pending_.pop_front();
    } else if (lacks_descriptors_) {
      return; // until this process closes one
    }
    if (socket.is_open()) {
      pending_.push_back({Handshake::as_server(std::move(socket), key_, purpose_), Clock::now() + kHandshakeTime});
    }
  }
}

// Without a free descriptor the listener would always be ready: the caller retries after its own time limit.
std::vector<pollfd> Acceptor::awaited() const {
  std::vector<pollfd> descriptors;
  if (!lacks_descriptors_) descriptors.push_back({listener_.descriptor(), POLLIN, 0});
  for (const Pending& pending : pending_) descriptors.push_back(pending.handshake.connection().awaited());
  return descriptors;
}

} // namespace gpt2
