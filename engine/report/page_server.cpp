#include "engine/report/page_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <regex>
#include <utility>
#include <vector>

#include "engine/base/files.h"

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

HttpAnswer answer_to(const std::string& request, const HttpHandler& handler) {
  static const std::regex first_line("^GET (/[^ ]*) HTTP/1\\.[01]\r\n");
  static const std::regex host("\r\n[Hh]ost: *(127\\.0\\.0\\.1|localhost)(:[0-9]+)?\r\n");
  std::smatch match;
  if (!std::regex_search(request, match, first_line)) return {405, "text/plain", "only GET\n"};
  if (!std::regex_search(request, host)) return {403, "text/plain", "only by the name 127.0.0.1 or localhost\n"};
  return handler(match[1]);
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

} // namespace

void serve_http(const Socket& listener, const HttpHandler& handler, const std::function<bool()>& stop) {
  std::vector<Connection> connections;
  while (!stop()) {
    std::vector<pollfd> waits = {{listener.descriptor(), POLLIN, 0}};
    for (const Connection& c : connections)
      waits.push_back({c.socket.descriptor(), static_cast<short>(c.reply.empty() ? POLLIN : POLLOUT), 0});
    if (::poll(waits.data(), waits.size(), kPollMilliseconds) < 0) continue; // a signal: `stop` knows more

    for (size_t i = 0; i < connections.size(); ++i) {
      Connection& c = connections[i];
      if (waits[i + 1].revents != 0) c.reply.empty() ? receive(c, handler) : send_more(c);
      if (Clock::now() > c.deadline) c.finished = true;
    }
    std::erase_if(connections, [](const Connection& c) { return c.finished; });
    while (connections.size() < kMostConnections) {
      Socket socket = accept_from(listener);
      if (!socket.is_open()) break;
      connections.push_back({std::move(socket), Clock::now() + kPatience, "", ""});
    }
  }
}

} // namespace gpt2
