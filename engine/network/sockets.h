// TCP sockets: owned descriptors, listening, connecting by name. None of them ever blocks: what must wait, polls.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace gpt2 {

using Clock = std::chrono::steady_clock;
using Cancelled = std::function<bool()>; // asked while something waits; null: never

class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  void close();

 private:
  int descriptor_;
};

enum class Reach { this_host, everywhere };

// Port 0: any free one. A port that somebody holds gives a closed socket; what else fails is Error(communication).
Socket listen_at(int port, Reach reach);
// Closed: nobody waits there. Where this process or the system has no descriptor left: says so, or, without
// `lacks_descriptors`, throws Error(communication).
Socket accept_from(const Socket& listener, bool* lacks_descriptors = nullptr);

// `host` is a name or an address, IPv4 or IPv6; each address that it stands for is tried. A closed socket: `problem`
// tells why.
Socket connect_to(const std::string& host, int port, Clock::time_point deadline, const Cancelled& cancelled,
                  std::string& problem);

int local_port(const Socket& socket);
std::string local_address(const Socket& socket); // numbers, as text; IPv4 in its own form
std::string peer_address(const Socket& socket);
bool is_connected_to_itself(const Socket& socket); // a port without a listener may be given to the one who calls it

// Waits until the descriptor is ready, `limit` has passed (then false) or a signal came (false too).
bool wait_until_ready(int descriptor, short events, Clock::duration limit);

} // namespace gpt2
