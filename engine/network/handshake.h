// How two processes prove to each other that they know the secret K of the job, without sending it:
//
//   caller                                                        the one who was called
//                                                            <--  challenge: nonce s
//   hello: nonce c, who, HMAC(K, "caller", purpose, s, c, who)  -->
//                                                            <--  welcome: HMAC(K, "called", purpose, s, c, who)
//
// Both nonces are 32 random bytes of this connection: nothing of it can be replayed on another one. Both sides derive a
// key for each direction from K and the nonces, and every frame that follows carries a MAC.
#pragma once

#include <string>

#include "engine/network/connection.h"
#include "engine/network/secret.h"

namespace gpt2 {

enum class Purpose { joining, mesh }; // a proof for one is none for the other

class Handshake {
 public:
  static Handshake as_called(Socket socket, const Key& key, Purpose purpose);
  static Handshake as_caller(Socket socket, const Key& key, Purpose purpose, std::string who);

  enum class State { under_way, done, failed };
  State advance();                         // reads and writes what the kernel allows; never blocks
  bool finish(Clock::time_point deadline); // advances until it is done (true), has failed, or the deadline passes

  const Connection& connection() const { return connection_; }
  Connection take_connection() { return std::move(connection_); }
  const std::string& who() const { return who_; } // the caller; proved once the handshake is done

 private:
  Handshake(Socket socket, const Key& key, Purpose purpose, bool is_caller, std::string who);
  bool handle(const Frame& frame);
  bool answer_challenge(const Frame& frame);
  bool check_hello(const Frame& frame);
  bool check_welcome(const Frame& frame);
  std::string proof(std::string_view side) const;
  void seal();

  Connection connection_;
  Key key_;
  Purpose purpose_;
  bool is_caller_;
  std::string who_, called_nonce_, caller_nonce_;
  State state_ = State::under_way;
};

} // namespace gpt2
