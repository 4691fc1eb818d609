// TCP sockets: owned descriptors, listening, connecting by name. All sockets are non-blocking; waiting is by poll().
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <span>
#include <string>

#include "engine/base/descriptor.h"

namespace gpt2 {

using Clock = std::chrono::steady_clock;
using Cancelled = std::function<bool()>;                 // called during waits; null: never cancelled
constexpr std::chrono::milliseconds kCancelledEvery(50); // longest time between two calls of it
using Socket = OwnedDescriptor;

enum class Reach { this_host, everywhere };

// Port 0: any free port. Returns a closed socket if the port is in use; other failures are Error(communication).
Socket listen_at(int port, Reach reach);
// Returns a closed socket if no connection waits. Out of descriptors: sets `lacks_descriptors`, or throws
// Error(communication) if it is null.
Socket accept_from(const Socket& listener, bool* lacks_descriptors = nullptr);

// `host` is a name or an IPv4 or IPv6 address; every address of a name is tried. On failure returns a closed socket and
// sets `problem`.
Socket connect_to(const std::string& host, int port, Clock::time_point deadline, const Cancelled& cancelled,
                  std::string& problem);

int local_port(const Socket& socket);
std::string local_address(const Socket& socket); // numeric; IPv4 in dotted form
std::string peer_address(const Socket& socket);
bool is_connected_to_itself(const Socket& socket); // TCP self-connect: the kernel chose the target as the source port

// poll(2). False: `limit` has passed, or a signal arrived.
bool wait_for_any(std::span<pollfd> descriptors, Clock::duration limit);

} // namespace gpt2
