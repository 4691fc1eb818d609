#include "engine/network/handshake.h"

#include <poll.h>

#include <algorithm>

namespace gpt2 {
namespace {

constexpr size_t kNonceBytes = 32;
constexpr Clock::duration kSlice = std::chrono::milliseconds(50);

std::string_view name_of(Purpose purpose) { return purpose == Purpose::joining ? "joining" : "mesh"; }

} // namespace

Handshake::Handshake(Socket socket, const Key& key, Purpose purpose, bool is_caller, std::string who)
    : connection_(std::move(socket)), key_(key), purpose_(purpose), is_caller_(is_caller), who_(std::move(who)) {
  (is_caller_ ? caller_nonce_ : called_nonce_) = random_bytes(kNonceBytes);
  if (!is_caller_) connection_.queue(FrameType::challenge, called_nonce_);
}

Handshake Handshake::as_called(Socket socket, const Key& key, Purpose purpose) {
  return {std::move(socket), key, purpose, false, ""};
}

Handshake Handshake::as_caller(Socket socket, const Key& key, Purpose purpose, std::string who) {
  return {std::move(socket), key, purpose, true, std::move(who)};
}

Handshake::State Handshake::advance() {
  connection_.receive();
  while (state_ == State::under_way) { // a frame after the last one of the handshake is sealed: not for here
    const auto frame = connection_.next();
    if (!frame) break;
    if (!handle(*frame)) state_ = State::failed;
  }
  connection_.flush();
  if (state_ == State::under_way && connection_.ended()) state_ = State::failed;
  return state_;
}

bool Handshake::finish(Clock::time_point deadline) {
  while (advance() == State::under_way) {
    const Clock::duration left = deadline - Clock::now();
    if (left <= Clock::duration::zero()) return false;
    wait_until_ready(connection_.socket().descriptor(), POLLIN, std::min(left, kSlice));
  }
  return state_ == State::done;
}

bool Handshake::handle(const Frame& frame) {
  if (!is_caller_) return check_hello(frame);
  return called_nonce_.empty() ? answer_challenge(frame) : check_welcome(frame);
}

bool Handshake::answer_challenge(const Frame& frame) {
  if (frame.type != FrameType::challenge || frame.body.size() != kNonceBytes) return false;
  called_nonce_ = frame.body;
  connection_.queue(FrameType::hello, caller_nonce_ + who_ + proof("caller"));
  return true;
}

bool Handshake::check_hello(const Frame& frame) {
  const size_t size = frame.body.size();
  if (frame.type != FrameType::hello || size < kNonceBytes + kMacBytes) return false;
  caller_nonce_ = frame.body.substr(0, kNonceBytes);
  who_ = frame.body.substr(kNonceBytes, size - kNonceBytes - kMacBytes);
  if (!same_in_constant_time(proof("caller"), std::string_view(frame.body).substr(size - kMacBytes))) return false;
  connection_.queue(FrameType::welcome, proof("called"));
  seal();
  return true;
}

bool Handshake::check_welcome(const Frame& frame) {
  if (frame.type != FrameType::welcome || !same_in_constant_time(proof("called"), frame.body)) return false;
  seal();
  return true;
}

std::string Handshake::proof(std::string_view side) const {
  return hmac(key_, {side, name_of(purpose_), called_nonce_, caller_nonce_, who_});
}

void Handshake::seal() {
  const auto key_of = [&](std::string_view sender) {
    return derived_key(key_, {"frames", sender, name_of(purpose_), called_nonce_, caller_nonce_, who_});
  };
  const Key of_caller = key_of("caller"), of_called = key_of("called");
  connection_.seal(is_caller_ ? of_caller : of_called, is_caller_ ? of_called : of_caller);
  state_ = State::done;
}

} // namespace gpt2
