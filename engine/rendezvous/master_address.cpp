#include "engine/rendezvous/master_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "engine/base/error.h"
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

// Where rank 0 listens: at the first port that is free (0: any).
struct Listening {
  std::string host; // as the others call it
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

// ---- with a token: all ranks know host, ports and key ----

class KnownPlace : public MeetingPlace {
 public:
  KnownPlace(Listening listening, const Key& key) : listening_(std::move(listening)), key_(key) {}

  Socket listen(const Key&) override { return listening_.listen(); }
  std::optional<Invitation> find() override {
    Invitation invitation{key_, {}};
    for (const int port : listening_.ports) invitation.endpoints.push_back({listening_.host, port});
    return invitation;
  }
  std::string description() const override { return listening_.description(); }

 private:
  const Listening listening_;
  const Key key_;
};

// ---- rank 0 publishes port, addresses and key ----

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

class PublishedPlace : public MeetingPlace {
 public:
  PublishedPlace(Listening listening, const std::optional<Key>& token)
      : listening_(std::move(listening)), token_(token) {}

  Socket listen(const Key& key) override {
    Socket socket = listening_.listen();
    publish({.key = token_ ? "" : to_hex(key),
             .port = local_port(socket),
             .addresses = listening_.host.empty() ? own_addresses() : std::vector{listening_.host}});
    return socket;
  }
  std::optional<Invitation> find() override {
    const auto publication = published();
    const auto key = token_ ? token_ : publication ? key_of_hex(publication->key) : std::nullopt;
    if (!publication || !key) return std::nullopt;
    Invitation invitation{*key, {}};
    for (const std::string& address : publication->addresses) {
      invitation.endpoints.push_back({address, publication->port});
    }
    return invitation;
  }

 protected:
  virtual void publish(const Publication& publication) = 0;
  virtual std::optional<Publication> published() = 0;
  const Listening listening_; // no host: at all addresses that rank 0 has

 private:
  const std::optional<Key> token_;
};

class FilePlace : public PublishedPlace {
 public:
  FilePlace(Listening listening, const std::optional<Key>& token, std::string path, bool makes_folder)
      : PublishedPlace(std::move(listening), token), file_(std::move(path)), makes_folder_(makes_folder) {}

  void close() override { file_.remove(); }
  std::string description() const override {
    if (listening_.host.empty()) return "the address in " + file_.path();
    return listening_.description() + " (port and secret in " + file_.path() + ")";
  }

 protected:
  void publish(const Publication& publication) override {
    if (makes_folder_) file_.make_folder();
    file_.write(publication);
  }
  // The file of an earlier job leads nowhere, or has another key: it is read again at every attempt.
  std::optional<Publication> published() override { return file_.read(); }

 private:
  PublishedFile file_;
  const bool makes_folder_;
};

class MpiPlace : public PublishedPlace {
 public:
  MpiPlace(Listening listening, const std::optional<Key>& token, int ranks)
      : PublishedPlace(std::move(listening), token), ranks_(ranks) {}

  std::string description() const override { return "the addresses that rank 0 sent over MPI"; }

 protected:
  void publish(const Publication& publication) override { mpi_broadcast(to_text(publication), ranks_); }
  std::optional<Publication> published() override {
    if (!publication_) publication_ = read_publication(mpi_broadcast("", ranks_));
    if (!publication_) throw Error(ExitCode::communication, "rank 0 sent a message over MPI that cannot be read");
    return publication_;
  }

 private:
  const int ranks_;
  std::optional<Publication> publication_;
};

// The file that carries the key of a job without a token: known to all ranks, readable by their user alone.
std::string key_file(const Launch& launch, bool one_host) {
  char name[17];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(hash_of(launch.job)));
  if (one_host) return runtime_folder() + "/" + name;
  if (launch.shared_folder.empty()) {
    throw Error(ExitCode::usage, "the ranks have no secret in common",
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

std::unique_ptr<MeetingPlace> MeetingPlace::of(const Launch& launch, const std::optional<Key>& token) {
  const bool one_host = on_one_host(launch);
  const Reach reach = one_host ? Reach::this_host : Reach::everywhere;
  const std::string loopback = one_host ? "127.0.0.1" : "";
  if (launch.master == kFile) {
    throw Error(ExitCode::usage, "--master file: names no file", "as in --master file:/shared/folder/ranks");
  }
  if (launch.master.starts_with(kFile)) {
    return std::make_unique<FilePlace>(Listening{loopback, {0}, reach}, token, launch.master.substr(kFile.size()),
                                       false);
  }
  if (launch.master == "mpi:") return std::make_unique<MpiPlace>(Listening{"", {0}, reach}, token, launch.ranks);

  const auto [host, port] = launch.master.empty() ? Endpoint{"", 0} : parse_master(launch.master);
  Listening listening{one_host ? loopback : host, {port}, reach};
  // On one host any free port does, if the others can read which.
  if (port == 0 && (token || !one_host)) listening.ports = candidate_ports(launch.job, launch.avoid_port);
  if (token) return std::make_unique<KnownPlace>(std::move(listening), *token);
  return std::make_unique<FilePlace>(std::move(listening), token, key_file(launch, one_host), !one_host);
}

} // namespace gpt2
