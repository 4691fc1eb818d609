#include "engine/network/handshake.h"

#include <algorithm>

namespace gpt2 {
namespace {

constexpr size_t kNonceBytes = 32;

std::string_view name_of(Handshake::Purpose purpose) {
  return purpose == Handshake::Purpose::joining ? "joining" : "mesh";
}

} // namespace

Handshake::Handshake(Socket socket, const Key& key, Purpose purpose, bool is_client, std::string identity)
    : connection_(std::move(socket)),
      key_(key),
      purpose_(purpose),
      is_client_(is_client),
      identity_(std::move(identity)) {
  (is_client_ ? client_nonce_ : server_nonce_) = random_bytes(kNonceBytes);
  if (!is_client_) connection_.queue(FrameType::challenge, server_nonce_);
}

Handshake Handshake::as_server(Socket socket, const Key& key, Purpose purpose) {
  return {std::move(socket), key, purpose, false, ""};
}

Handshake Handshake::as_client(Socket socket, const Key& key, Purpose purpose, std::string identity) {
  return {std::move(socket), key, purpose, true, std::move(identity)};
}

Handshake::State Handshake::advance() {
  connection_.receive();
  while (state_ == State::in_progress) { // frames after the handshake carry a MAC: not read here
    const auto frame = connection_.next();
    if (!frame) break;
    if (!handle(*frame)) state_ = State::failed;
  }
  connection_.flush();
  if (state_ == State::in_progress && connection_.ended()) state_ = State::failed;
  return state_;
}

bool Handshake::finish(Clock::time_point deadline, const Cancelled& cancelled) {
  while (advance() == State::in_progress) {
    if (Clock::now() >= deadline || (cancelled && cancelled())) return false;
    pollfd awaited = connection_.awaited();
    wait_for_any({&awaited, 1}, std::min<Clock::duration>(deadline - Clock::now(), kCancelledEvery));
  }
  return state_ == State::done;
}

bool Handshake::handle(const Frame& frame) {
  if (!is_client_) return check_hello(frame);
  return server_nonce_.empty() ? answer_challenge(frame) : check_welcome(frame);
}

bool Handshake::answer_challenge(const Frame& frame) {
  if (frame.type != FrameType::challenge || frame.body.size() != kNonceBytes) return false;
  server_nonce_ = frame.body;
  connection_.queue(FrameType::hello, client_nonce_ + identity_ + proof("caller"));
  return true;
}

bool Handshake::check_hello(const Frame& frame) {
  const size_t size = frame.body.size();
  if (frame.type != FrameType::hello || size < kNonceBytes + kMacBytes) return false;
  client_nonce_ = frame.body.substr(0, kNonceBytes);
  identity_ = frame.body.substr(kNonceBytes, size - kNonceBytes - kMacBytes);
  if (!same_in_constant_time(proof("caller"), std::string_view(frame.body).substr(size - kMacBytes))) return false;
  connection_.queue(FrameType::welcome, proof("called"));
  derive_keys();
  return true;
}

bool Handshake::check_welcome(const Frame& frame) {
  if (frame.type != FrameType::welcome || !same_in_constant_time(proof("called"), frame.body)) return false;
  derive_keys();
  return true;
}

std::string Handshake::proof(std::string_view side) const {
  return hmac(key_, {side, name_of(purpose_), server_nonce_, client_nonce_, identity_});
}

void Handshake::derive_keys() {
  const auto key_of = [&](std::string_view sender) {
    return derived_key(key_, {"frames", sender, name_of(purpose_), server_nonce_, client_nonce_, identity_});
  };
  const Key client_key = key_of("caller"), server_key = key_of("called");
  connection_.use_macs(is_client_ ? client_key : server_key, is_client_ ? server_key : client_key);
  state_ = State::done;
}

} // namespace gpt2
