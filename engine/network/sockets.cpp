#include "engine/network/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

using std::chrono::milliseconds;

[[noreturn]] void throw_socket_error(const std::string& action) {
  throw Error(ExitCode::communication, "cannot " + action + ": " + std::strerror(errno),
              "check ulimit -n and the firewall of this machine");
}

Socket open_socket(int family) { return Socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

void set_flag(const Socket& socket, int level, int option, int value) {
  ::setsockopt(socket.descriptor(), level, option, &value, sizeof value);
}

// One dual-stack socket on all interfaces; IPv4 only if the kernel has no IPv6.
Socket bound_socket(int port, Reach reach) {
  const auto bind_to = [](Socket socket, const auto& address) {
    if (!socket.is_open()) return Socket();
    set_flag(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    if (::bind(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return Socket();
    return socket;
  };
  if (reach == Reach::everywhere) {
    sockaddr_in6 any = {};
    any.sin6_family = AF_INET6, any.sin6_port = htons(static_cast<uint16_t>(port)), any.sin6_addr = in6addr_any;
    Socket both = open_socket(AF_INET6);
    if (both.is_open()) set_flag(both, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    Socket bound = bind_to(std::move(both), any);
    if (bound.is_open() || errno == EADDRINUSE) return bound;
  }
  sockaddr_in address = {};
  address.sin_family = AF_INET, address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(reach == Reach::this_host ? INADDR_LOOPBACK : INADDR_ANY);
  return bind_to(open_socket(AF_INET), address);
}

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = sizeof storage; // 0: unknown
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// `get_name`: getsockname(2) or getpeername(2).
SocketAddress address_of(const Socket& socket, int (*get_name)(int, sockaddr*, socklen_t*)) {
  SocketAddress address;
  if (get_name(socket.descriptor(), address.get(), &address.size) != 0) address.size = 0;
  return address;
}

std::string as_text(SocketAddress address) {
  char text[NI_MAXHOST];
  if (::getnameinfo(address.get(), address.size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  constexpr const char* kMapped = "::ffff:"; // IPv4 through a dual-stack socket
  return std::strncmp(text, kMapped, std::strlen(kMapped)) == 0 && std::strchr(text, '.') ? text + std::strlen(kMapped)
                                                                                          : text;
}

bool finish_connecting(const Socket& socket, Clock::time_point deadline, const Cancelled& cancelled) {
  pollfd connecting = {socket.descriptor(), POLLOUT, 0};
  while (!wait_for_any({&connecting, 1}, std::min<Clock::duration>(deadline - Clock::now(), kCancelledEvery))) {
    if (Clock::now() < deadline && !(cancelled && cancelled())) continue;
    errno = ETIMEDOUT;
    return false;
  }
  int failure = 0;
  socklen_t size = sizeof failure;
  ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &failure, &size);
  errno = failure;
  return failure == 0;
}

} // namespace

Socket listen_at(int port, Reach reach) {
  Socket socket = bound_socket(port, reach);
  // With SO_REUSEADDR two sockets can bind to one port; listen() fails for the second.
  if (socket.is_open() && ::listen(socket.descriptor(), SOMAXCONN) == 0) return socket;
  if (errno != EADDRINUSE && errno != EACCES) throw_socket_error("listen on port " + std::to_string(port));
  return Socket();
}

Socket accept_from(const Socket& listener, bool* lacks_descriptors) {
  Socket socket(::accept4(listener.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.is_open()) set_flag(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  const bool lacking = !socket.is_open() && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
  if (lacking && !lacks_descriptors) throw_socket_error("accept a connection");
  if (lacks_descriptors) *lacks_descriptors = lacking;
  return socket;
}

Socket connect_to(const std::string& host, int port, Clock::time_point deadline, const Cancelled& cancelled,
                  std::string& problem) {
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int failure = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found)) {
    problem = host + ": " + ::gai_strerror(failure);
    return Socket();
  }
  Socket connected;
  for (const addrinfo* address = found; address && !connected.is_open(); address = address->ai_next) {
    Socket socket = open_socket(address->ai_family);
    if (!socket.is_open()) {
      problem = std::string("no socket: ") + std::strerror(errno);
      continue;
    }
    set_flag(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    const int status = ::connect(socket.descriptor(), address->ai_addr, address->ai_addrlen);
    if (status == 0 || (errno == EINPROGRESS && finish_connecting(socket, deadline, cancelled))) {
      connected = std::move(socket);
    } else {
      problem = host + " port " + std::to_string(port) + ": " + std::strerror(errno);
    }
  }
  ::freeaddrinfo(found);
  return connected;
}

int local_port(const Socket& socket) {
  SocketAddress address = address_of(socket, ::getsockname);
  if (address.size == 0) throw_socket_error("read the port of a socket");
  return ntohs(address.storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port
                                                     : reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port);
}

std::string local_address(const Socket& socket) { return as_text(address_of(socket, ::getsockname)); }

std::string peer_address(const Socket& socket) { return as_text(address_of(socket, ::getpeername)); }

bool is_connected_to_itself(const Socket& socket) {
  const SocketAddress here = address_of(socket, ::getsockname), there = address_of(socket, ::getpeername);
  return here.size > 0 && here.size == there.size && std::memcmp(&here.storage, &there.storage, here.size) == 0;
}

bool wait_for_any(std::span<pollfd> descriptors, Clock::duration limit) {
  const auto left = std::clamp<int64_t>(std::chrono::ceil<milliseconds>(limit).count(), 0, INT_MAX);
  return ::poll(descriptors.data(), descriptors.size(), static_cast<int>(left)) > 0;
}

} // namespace gpt2
