#include "engine/dist/meeting_place.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <random>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/dist/mpi_broadcast.h"

namespace gpt2 {
namespace {

constexpr int kCandidates = 16, kFirstPort = 20000, kPorts = 32000;

// ---- a host and ports ----

class HostPlace : public MeetingPlace {
 public:
  HostPlace(std::string host, std::vector<int> ports, Reach reach)
      : host_(std::move(host)), ports_(std::move(ports)), reach_(reach) {}

  Socket listen() override {
    for (const int port : ports_) {
      Socket socket = listen_at(port, reach_);
      if (socket.is_open()) return socket;
    }
    throw Error(ExitCode::communication, "cannot listen at " + description() + ": in use, or not allowed",
                "give another --master HOST:PORT, or end the process that holds it");
  }
  std::vector<Endpoint> endpoints() override {
    std::vector<Endpoint> endpoints;
    for (const int port : ports_) endpoints.push_back({host_, port});
    return endpoints;
  }
  std::string description() const override {
    const std::string first = host_ + ", port " + std::to_string(ports_[0]);
    return ports_.size() == 1 ? first : first + " and " + std::to_string(ports_.size() - 1) + " others";
  }

 private:
  const std::string host_;
  const std::vector<int> ports_;
  const Reach reach_;
};

// ---- what rank 0 publishes: a nonce, a port and all its addresses, one word a line ----

// This host's addresses that others may reach; for ranks beside it, the loopback at last.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) interfaces = nullptr;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = interfaces; i; i = i->ifa_next) {
      if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP)) continue;
      if (i->ifa_flags & IFF_LOOPBACK) continue;
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      char text[NI_MAXHOST];
      if (::getnameinfo(i->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) continue;
      const bool on_one_link_only = std::string_view(text).find('%') != std::string_view::npos;
      if (!on_one_link_only) addresses.emplace_back(text);
    }
  }
  if (interfaces) ::freeifaddrs(interfaces);
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::string publication(uint64_t nonce, int port) {
  std::string text = "gpt2_ranks " + std::to_string(nonce) + " " + std::to_string(port) + "\n";
  for (const std::string& address : own_addresses()) text += address + "\n";
  return text;
}

std::vector<Endpoint> read_publication(const std::string& text, uint64_t& nonce) {
  std::istringstream words(text);
  std::string title, address;
  int port = 0;
  std::vector<Endpoint> endpoints;
  if (!(words >> title >> nonce >> port) || title != "gpt2_ranks") return {};
  while (words >> address) endpoints.push_back({address, port});
  return endpoints;
}

// ---- a file that all ranks see ----

class FilePlace : public MeetingPlace {
 public:
  explicit FilePlace(std::string path) : path_(std::move(path)) {}
  ~FilePlace() override { FilePlace::close(); }

  Socket listen() override {
    Socket socket = listen_at(0, Reach::everywhere);
    nonce_ = random_number();
    write_file_atomic(path_, publication(nonce_, local_port(socket)), Links::replace);
    published_ = true;
    return socket;
  }
  void close() override {
    if (published_) ::unlink(path_.c_str());
    published_ = false;
  }
  // The file of an earlier run leads nowhere, or to a rank 0 that has another nonce; it is read again each time.
  std::vector<Endpoint> endpoints() override {
    std::ifstream file(path_);
    std::ostringstream text;
    text << file.rdbuf();
    return read_publication(text.str(), nonce_);
  }
  std::string description() const override { return "the address in " + path_; }

 private:
  const std::string path_;
  bool published_ = false;
};

// ---- a word over MPI ----

class MpiPlace : public MeetingPlace {
 public:
  explicit MpiPlace(int ranks) : ranks_(ranks) {}

  Socket listen() override {
    Socket socket = listen_at(0, Reach::everywhere);
    nonce_ = random_number();
    mpi_broadcast(publication(nonce_, local_port(socket)), ranks_);
    return socket;
  }
  std::vector<Endpoint> endpoints() override {
    if (endpoints_.empty()) endpoints_ = read_publication(mpi_broadcast("", ranks_), nonce_);
    return endpoints_;
  }
  std::string description() const override { return "the addresses that rank 0 gave over MPI"; }

 private:
  const int ranks_;
  std::vector<Endpoint> endpoints_;
};

// "host", "host:port", "[::1]:port", "::1"
std::unique_ptr<MeetingPlace> place_at(const std::string& master, const std::vector<int>& candidates) {
  std::string host = master, port;
  const size_t colon = master.rfind(':');
  const bool bracketed = master.starts_with('[');
  if (bracketed) {
    const size_t end = master.find(']');
    host = master.substr(1, end - 1);
    if (end != std::string::npos && colon == end + 1) port = master.substr(colon + 1);
  } else if (colon != std::string::npos && master.find(':') == colon) { // more colons: an IPv6 address without a port
    host = master.substr(0, colon), port = master.substr(colon + 1);
    if (port.empty()) port = "0";
  }
  if (port.empty()) return std::make_unique<HostPlace>(host, candidates, Reach::everywhere);
  int number = 0;
  const auto [stopped, status] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (status != std::errc() || stopped != port.data() + port.size() || number < 1 || number > 65535 || host.empty()) {
    throw Error(ExitCode::usage, "'" + master + "' is no HOST:PORT", "a port is a number from 1 to 65535");
  }
  return std::make_unique<HostPlace>(host, std::vector{number}, Reach::everywhere);
}

} // namespace

std::vector<int> candidate_ports(uint64_t token, int avoid_port) {
  std::minstd_rand next(static_cast<uint32_t>(token ^ token >> 32));
  std::vector<int> ports;
  while (ports.size() < kCandidates) {
    const int port = kFirstPort + static_cast<int>(next() % kPorts);
    if (port != avoid_port && std::find(ports.begin(), ports.end(), port) == ports.end()) ports.push_back(port);
  }
  return ports;
}

std::unique_ptr<MeetingPlace> MeetingPlace::of(const Launch& launch, uint64_t token) {
  constexpr std::string_view kFile = "file:";
  if (launch.master.starts_with(kFile)) return std::make_unique<FilePlace>(launch.master.substr(kFile.size()));
  if (launch.master == "mpi:") return std::make_unique<MpiPlace>(launch.ranks);
  const std::vector<int> candidates = candidate_ports(token, launch.avoid_port);
  if (launch.master.empty()) return std::make_unique<HostPlace>("127.0.0.1", candidates, Reach::this_host);
  return place_at(launch.master, candidates);
}

} // namespace gpt2
