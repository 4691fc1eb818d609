#include "tools/report/page_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/system/files.h"

namespace gpt2 {
namespace {

constexpr size_t kLongestRequest = 16 << 10; // bytes
constexpr size_t kMostConnections = 64;
constexpr auto kPatience = std::chrono::seconds(20); // a browser opens connections that it never uses
constexpr int kPollMilliseconds = 200;

struct Connection {
  Socket socket;
  Clock::time_point deadline;
  std::string request, reply;
  size_t sent = 0;
  bool finished = false;
};

std::string reason(int status) {
  return status == 200 ? "OK" : status == 204 ? "No Content" : status == 404 ? "Not Found" : "Refused";
}

std::string http_text(const HttpAnswer& answer) {
  std::string out = "HTTP/1.1 " + std::to_string(answer.status) + " " + reason(answer.status) + "\r\n";
  if (!answer.type.empty()) out += "Content-Type: " + answer.type + "; charset=utf-8\r\n";
  return out + "Content-Length: " + std::to_string(answer.body.size()) +
         "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n" + answer.body;
}

// "/data.json" of "GET /data.json HTTP/1.1"; "" of anything else.
std::string target_of(std::string_view line) {
  if (!line.starts_with("GET /") || !(line.ends_with(" HTTP/1.1") || line.ends_with(" HTTP/1.0"))) return "";
  const std::string_view target = line.substr(4, line.size() - 4 - 9);
  return target.find(' ') == std::string_view::npos ? std::string(target) : "";
}

bool is_host_field(std::string_view line) {
  constexpr std::string_view kName = "host:";
  return std::ranges::equal(line.substr(0, kName.size()), kName,
                            [](unsigned char c, char expected) { return std::tolower(c) == expected; });
}

bool is_this_machine(std::string_view host) { // 127.0.0.1:6007
  const size_t end = std::min(host.find(':'), host.size());
  const std::string_view name = host.substr(0, end), port = host.substr(end);
  return (name == "127.0.0.1" || name == "localhost") && port.find_first_not_of("0123456789", 1) == port.npos &&
         port != ":";
}

HttpAnswer answer_to(std::string_view request, const HttpHandler& handler) {
  const std::string target = target_of(request.substr(0, request.find("\r\n")));
  if (target.empty()) return {405, "text/plain", "only GET\n"};
  bool has_host = false, is_ours = true;
  for (size_t at = request.find("\r\n") + 2; at < request.size();) {
    const size_t end = std::min(request.find("\r\n", at), request.size());
    const std::string_view line = request.substr(at, end - at);
    at = end + 2;
    if (line.empty()) break; // of the fields
    if (!is_host_field(line)) continue;
    const size_t value = std::min(line.find_first_not_of(" \t", 5), line.size());
    has_host = true;
    is_ours = is_ours && is_this_machine(line.substr(value));
  }
  if (!has_host || !is_ours) return {403, "text/plain", "only by the name 127.0.0.1 or localhost\n"};
  return handler(target);
}

void receive(Connection& c, const HttpHandler& handler) {
  char bytes[4096];
  const ssize_t size = ::recv(c.socket.descriptor(), bytes, sizeof bytes, 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) {
    c.finished = true;
    return;
  }
  c.request.append(bytes, static_cast<size_t>(size));
  if (c.request.find("\r\n\r\n") != std::string::npos)
    c.reply = http_text(answer_to(c.request, handler));
  else if (c.request.size() > kLongestRequest)
    c.reply = http_text({431, "text/plain", "the request is too long\n"});
}

void send_more(Connection& c) {
  const ssize_t size = ::send(c.socket.descriptor(), c.reply.data() + c.sent, c.reply.size() - c.sent, MSG_NOSIGNAL);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  c.sent += static_cast<size_t>(std::max<ssize_t>(size, 0));
  c.finished = size < 0 || c.sent == c.reply.size();
}

// Makes room for a new client: drops the oldest idle connection, else the oldest.
void drop_one(std::vector<Connection>& connections) {
  const auto idle = std::ranges::find_if(connections, [](const Connection& c) { return c.reply.empty(); });
  connections.erase(idle == connections.end() ? connections.begin() : idle);
}

// Invalid: no client waits, or the process is out of descriptors and one was freed for the next call.
Socket accept_or_make_room(const Socket& listener, std::vector<Connection>& connections) {
  try {
    return accept_from(listener);
  } catch (const Error&) {
    if (connections.empty()) throw;
    drop_one(connections);
    return Socket();
  }
}

} // namespace

void serve_http(const Socket& listener, const HttpHandler& handler, const std::function<bool()>& stop) {
  std::vector<Connection> connections;
  while (!stop()) {
    std::vector<pollfd> waits = {{listener.descriptor(), POLLIN, 0}};
    for (const Connection& c : connections)
      waits.push_back({c.socket.descriptor(), static_cast<short>(c.reply.empty() ? POLLIN : POLLOUT), 0});
    if (::poll(waits.data(), waits.size(), kPollMilliseconds) < 0) continue; // a signal: check `stop`

    for (size_t i = 0; i < connections.size(); ++i) {
      Connection& c = connections[i];
      if (waits[i + 1].revents != 0) c.reply.empty() ? receive(c, handler) : send_more(c);
      if (Clock::now() > c.deadline) c.finished = true;
    }
    std::erase_if(connections, [](const Connection& c) { return c.finished; });
    for (bool more = waits.front().revents != 0; more;) {
      if (connections.size() == kMostConnections) drop_one(connections);
      Socket socket = accept_or_make_room(listener, connections);
      more = socket.is_open() && connections.size() + 1 < kMostConnections; // serve these before accepting more
      if (socket.is_open()) connections.push_back({std::move(socket), Clock::now() + kPatience, "", ""});
    }
  }
}

} // namespace gpt2
