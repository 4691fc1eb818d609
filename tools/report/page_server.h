// A minimal HTTP server for a browser on this machine: GET only.
#pragma once

#include <functional>
#include <string>

#include "engine/network/sockets.h"

namespace gpt2 {

struct HttpAnswer {
  int status = 200;
  std::string type, body;
};

// `target`: "/data.json?have=3"
using HttpHandler = std::function<HttpAnswer(const std::string& target)>;

// Serves until `stop` returns true; polls it several times a second. Refuses requests whose Host is neither 127.0.0.1
// nor localhost (DNS rebinding).
void serve_http(const Socket& listener, const HttpHandler& handler, const std::function<bool()>& stop);

} // namespace gpt2
