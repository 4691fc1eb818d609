// HTTP for one reader on this machine: GET and nothing else, answers that are made when asked for.
#pragma once

#include <functional>
#include <string>

#include "engine/dist/sockets.h"

namespace gpt2 {

struct HttpAnswer {
  int status = 200;
  std::string type, body;
};

// `target`: "/data.json?have=3"
using HttpHandler = std::function<HttpAnswer(const std::string& target)>;

// Answers until `stop` says so; it is asked several times a second. A browser that comes by another name than this
// machine's own is refused: a page from elsewhere must not read ours through a name of its own (DNS rebinding).
void serve_http(const Socket& listener, const HttpHandler& handler, const std::function<bool()>& stop);

} // namespace gpt2
