// Serialization of the messages between ranks. Reading is bounded and returns nullopt for invalid bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/rendezvous/heartbeat.h"

namespace gpt2 {

struct Member {
  std::string host; // name
  int process = 0;
  std::string address; // numeric, as seen by other hosts; empty: on the host of rank 0
};

struct Hello {
  uint32_t version = 0;
  int rank = 0, ranks = 0;
  Member from;
};
std::string to_bytes(const Hello& hello);
std::optional<Hello> read_hello(std::string_view bytes);

std::string to_bytes(const std::vector<Member>& roster);
std::optional<std::vector<Member>> read_roster(std::string_view bytes, int ranks);

struct Heartbeat {
  Activity activity;
  std::chrono::milliseconds lasts;
};
std::string to_bytes(const Heartbeat& heartbeat);
std::optional<Heartbeat> read_heartbeat(std::string_view bytes);

std::string to_bytes(const std::vector<std::string>& texts);
std::optional<std::vector<std::string>> read_texts(std::string_view bytes, int count);

std::string to_bytes(const Error& error);
std::optional<Error> read_error(std::string_view bytes);

std::optional<int> read_port(std::string_view text); // "4000": 1 to 65535

// Address of rank 0, as text in a file or over MPI:
//
//   gpt2_ranks 2
//   key HEX             if the ranks have no token
//   port 4000
//   address 10.0.0.1    one or more
//   end
struct Publication {
  std::string key; // 64 hexadecimal digits, or empty
  int port = 0;
  std::vector<std::string> addresses;
};
std::string to_text(const Publication& publication);
std::optional<Publication> read_publication(std::string_view text); // nullopt: invalid or incomplete
bool is_publication(std::string_view text);                         // of any version, by its first word
bool may_become_publication(std::string_view text);                 // is one, or the beginning of one
constexpr size_t kPublicationBytes = 1 << 16;                       // at most

} // namespace gpt2
