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

} // namespace gpt2
