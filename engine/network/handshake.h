// Mutual authentication: two processes prove that they know the secret K of the job, without sending it.
//
//   client                                                     server
//                                                         <--  challenge: nonce s
//   hello: nonce c, id, HMAC(K, "caller", purpose, s, c, id)  -->
//                                                         <--  welcome: HMAC(K, "called", purpose, s, c, id)
//
// The nonces are 32 random bytes per connection, which prevents replay. Both sides derive a key for each direction from
// K and the nonces, and every later frame carries a MAC.
#pragma once

#include <string>

#include "engine/network/connection.h"
#include "engine/network/secret.h"

namespace gpt2 {

class Handshake {
 public:
  enum class Purpose { joining, mesh }; // part of the proof: it is not valid for the other purpose
  static Handshake as_server(Socket socket, const Key& key, Purpose purpose);
  static Handshake as_client(Socket socket, const Key& key, Purpose purpose, std::string identity);

  enum class State { in_progress, done, failed };
  State advance(); // reads and writes without blocking
  // True: done. False: failed, the deadline passed, or cancelled.
  bool finish(Clock::time_point deadline, const Cancelled& cancelled = nullptr);

  const Connection& connection() const { return connection_; }
  Connection take_connection() { return std::move(connection_); }
  const std::string& identity() const { return identity_; } // of the client; authentic once the handshake is done

 private:
  Handshake(Socket socket, const Key& key, Purpose purpose, bool is_client, std::string identity);
  bool handle(const Frame& frame);
  bool answer_challenge(const Frame& frame);
  bool check_hello(const Frame& frame);
  bool check_welcome(const Frame& frame);
  std::string proof(std::string_view side) const;
  void derive_keys();

  Connection connection_;
  Key key_;
  Purpose purpose_;
  bool is_client_;
  std::string identity_, server_nonce_, client_nonce_;
  State state_ = State::in_progress;
};

} // namespace gpt2
