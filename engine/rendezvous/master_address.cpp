#include "engine/rendezvous/master_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/rendezvous/messages.h"
#include "engine/rendezvous/mpi_broadcast.h"
#include "engine/rendezvous/published_file.h"
#include "engine/system/content_hash.h"

namespace gpt2 {
namespace {

constexpr int kCandidates = 16, kFirstPort = 20000, kPorts = 32000;
constexpr std::string_view kFile = "file:";

uint64_t hash_of(const std::string& job) {
  return xxh64(std::as_bytes(std::span(job.data(), job.size())), ::geteuid());
}

// Rank 0 listens at the first free port (0: any).
struct ListenAddress {
  std::string host; // as the other ranks resolve it
  std::vector<int> ports;
  Reach reach;

  std::string description() const {
    if (ports[0] == 0) return host;
    const std::string first = host + ", port " + std::to_string(ports[0]);
    return ports.size() == 1 ? first : first + " and " + std::to_string(ports.size() - 1) + " others";
  }
  Socket listen() const {
    for (const int port : ports) {
      Socket socket = listen_at(port, reach);
      if (socket.is_open()) return socket;
    }
    throw Error(ExitCode::communication, "cannot listen at " + description() + ": in use, or not allowed",
                "give another --master HOST:PORT, or end the process that holds it");
  }
};

// ---- with a token: all ranks compute host, ports and key ----

class ComputedAddress : public MasterAddress {
 public:
  ComputedAddress(ListenAddress listen_address, const Key& key)
      : listen_address_(std::move(listen_address)), key_(key) {}

  Socket listen(const Key&) override { return listen_address_.listen(); }
  std::optional<FoundMaster> find() override {
    FoundMaster found{key_, {}};
    for (const int port : listen_address_.ports) found.endpoints.push_back({listen_address_.host, port});
    return found;
  }
  std::string description() const override { return listen_address_.description(); }

 private:
  const ListenAddress listen_address_;
  const Key key_;
};

// ---- rank 0 publishes port, addresses and key ----

// Addresses of this host: those that other hosts may reach, then loopback for ranks on this host.
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

class PublishedAddress : public MasterAddress {
 public:
  PublishedAddress(ListenAddress listen_address, const std::optional<Key>& token)
      : listen_address_(std::move(listen_address)), token_(token) {}

  Socket listen(const Key& key) override {
    Socket socket = listen_address_.listen();
    publish({.key = token_ ? "" : to_hex(key),
             .port = local_port(socket),
             .addresses = listen_address_.host.empty() ? own_addresses() : std::vector{listen_address_.host}});
    return socket;
  }
  std::optional<FoundMaster> find() override {
    const auto publication = published();
    const auto key = token_ ? token_ : publication ? key_of_hex(publication->key) : std::nullopt;
    if (!publication || !key) return std::nullopt;
    FoundMaster found{*key, {}};
    for (const std::string& address : publication->addresses) {
      found.endpoints.push_back({address, publication->port});
    }
    return found;
  }

 protected:
  virtual void publish(const Publication& publication) = 0;
  virtual std::optional<Publication> published() = 0;
  const ListenAddress listen_address_; // empty host: all addresses of rank 0

 private:
  const std::optional<Key> token_;
};

class FileAddress : public PublishedAddress {
 public:
  FileAddress(ListenAddress listen_address, const std::optional<Key>& token, std::string path, bool makes_folder)
      : PublishedAddress(std::move(listen_address), token), file_(std::move(path)), makes_folder_(makes_folder) {}

  void close() override { file_.remove(); }
  std::string description() const override {
    if (listen_address_.host.empty()) return "the address in " + file_.path();
    return listen_address_.description() + " (port and secret in " + file_.path() + ")";
  }

 protected:
  void publish(const Publication& publication) override {
    if (makes_folder_) file_.make_folder();
    file_.write(publication);
  }
  // Read at every attempt: the file of an earlier job has a dead address or another key.
  std::optional<Publication> published() override { return file_.read(); }

 private:
  PublishedFile file_;
  const bool makes_folder_;
};

class MpiAddress : public PublishedAddress {
 public:
  MpiAddress(ListenAddress listen_address, const std::optional<Key>& token, int ranks)
      : PublishedAddress(std::move(listen_address), token), ranks_(ranks) {}

  std::string description() const override { return "the addresses that rank 0 sent over MPI"; }

 protected:
  void publish(const Publication& publication) override { mpi_broadcast(to_text(publication), ranks_); }
  std::optional<Publication> published() override {
    if (!publication_) publication_ = read_publication(mpi_broadcast("", ranks_));
    if (!publication_) throw Error(ExitCode::communication, "cannot parse the message of rank 0 over MPI");
    return publication_;
  }

 private:
  const int ranks_;
  std::optional<Publication> publication_;
};

// File with the key of a job without a token: all ranks know its name, only their user can read it.
std::string key_file(const Launch& launch, bool one_host) {
  const std::string name = formatted("%016llx", static_cast<unsigned long long>(hash_of(launch.job)));
  if (one_host) return runtime_folder() + "/" + name;
  if (launch.shared_folder.empty()) {
    throw Error(ExitCode::usage, "the ranks share no secret",
                "export GPT2_JOB_TOKEN=$(openssl rand -hex 32), the same for all ranks");
  }
  return launch.shared_folder + "/.ranks-" + name;
}

} // namespace

std::vector<int> candidate_ports(const std::string& job, int avoid_port) {
  const uint64_t hash = hash_of(job);
  std::minstd_rand next(static_cast<uint32_t>(hash ^ hash >> 32));
  std::vector<int> ports;
  while (ports.size() < kCandidates) {
    const int port = kFirstPort + static_cast<int>(next() % kPorts);
    if (port != avoid_port && std::find(ports.begin(), ports.end(), port) == ports.end()) ports.push_back(port);
  }
  return ports;
}

std::unique_ptr<MasterAddress> MasterAddress::of(const Launch& launch, const std::optional<Key>& token) {
  const bool one_host = on_one_host(launch);
  const Reach reach = one_host ? Reach::this_host : Reach::everywhere;
  const std::string loopback = one_host ? "127.0.0.1" : "";
  if (launch.master == kFile) {
    throw Error(ExitCode::usage, "--master file: has no path", "give one, such as --master file:/shared/folder/ranks");
  }
  if (launch.master.starts_with(kFile)) {
    return std::make_unique<FileAddress>(ListenAddress{loopback, {0}, reach}, token, launch.master.substr(kFile.size()),
                                         false);
  }
  if (launch.master == "mpi:") return std::make_unique<MpiAddress>(ListenAddress{"", {0}, reach}, token, launch.ranks);

  const auto [host, port] = launch.master.empty() ? Endpoint{"", 0} : parse_master(launch.master);
  ListenAddress listen_address{one_host ? loopback : host, {port}, reach};
  // On one host without a token: any free port; the file holds its number.
  if (port == 0 && (token || !one_host)) listen_address.ports = candidate_ports(launch.job, launch.avoid_port);
  if (token) return std::make_unique<ComputedAddress>(std::move(listen_address), *token);
  return std::make_unique<FileAddress>(std::move(listen_address), token, key_file(launch, one_host), !one_host);
}

} // namespace gpt2
