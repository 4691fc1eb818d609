#include "engine/rendezvous/messages.h"

#include "engine/base/parse_number.h"
#include "engine/network/secret.h"
#include "engine/network/wire.h"

namespace gpt2 {
namespace {

constexpr std::string_view kTitle = "gpt2_ranks ", kVersionedTitle = "gpt2_ranks 2\n";
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365); // activity: sums do not overflow

void put(Packer& packer, const Member& member) {
  packer.put(member.process).put_text(member.host).put_text(member.address);
}

Member take_member(Unpacker& unpacker) {
  Member member;
  member.process = unpacker.take<int>();
  member.host = unpacker.take_text(), member.address = unpacker.take_text();
  return member;
}

template <class Message>
std::optional<Message> if_complete(const Unpacker& unpacker, Message message) {
  if (!unpacker.complete()) return std::nullopt;
  return message;
}

} // namespace

// ---- joining ----

std::string to_bytes(const Hello& hello) {
  Packer packer;
  packer.put(hello.version).put(hello.rank).put(hello.ranks);
  put(packer, hello.from);
  return packer.bytes();
}

std::optional<Hello> read_hello(std::string_view bytes) {
  Unpacker unpacker(bytes);
  Hello hello;
  hello.version = unpacker.take<uint32_t>();
  hello.rank = unpacker.take<int>(), hello.ranks = unpacker.take<int>();
  hello.from = take_member(unpacker);
  return if_complete(unpacker, hello);
}

std::string to_bytes(const std::vector<Member>& roster) {
  Packer packer;
  for (const Member& member : roster) put(packer, member);
  return packer.bytes();
}

std::optional<std::vector<Member>> read_roster(std::string_view bytes, int ranks) {
  Unpacker unpacker(bytes);
  std::vector<Member> roster(static_cast<size_t>(ranks));
  for (Member& member : roster) member = take_member(unpacker);
  return if_complete(unpacker, std::move(roster));
}

// ---- training ----

std::string to_bytes(const Heartbeat& heartbeat) {
  return Packer().put(static_cast<uint8_t>(heartbeat.activity)).put(int64_t{heartbeat.lasts.count()}).bytes();
}

std::optional<Heartbeat> read_heartbeat(std::string_view bytes) {
  Unpacker unpacker(bytes);
  const auto activity = unpacker.take<uint8_t>();
  const std::chrono::milliseconds lasts(unpacker.take<int64_t>());
  if (activity > static_cast<uint8_t>(Activity::busy) || lasts.count() < 0 || lasts > kLongest) return std::nullopt;
  return if_complete(unpacker, Heartbeat{static_cast<Activity>(activity), lasts});
}

std::string to_bytes(const std::vector<std::string>& texts) {
  Packer packer;
  for (const std::string& text : texts) packer.put_text(text);
  return packer.bytes();
}

std::optional<std::vector<std::string>> read_texts(std::string_view bytes, int count) {
  Unpacker unpacker(bytes);
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) texts.push_back(unpacker.take_text());
  return if_complete(unpacker, std::move(texts));
}

std::string to_bytes(const Error& error) {
  return Packer().put(static_cast<int>(error.code())).put_text(error.what()).put_text(error.hint()).bytes();
}

std::optional<Error> read_error(std::string_view bytes) {
  Unpacker unpacker(bytes);
  const int code = unpacker.take<int>();
  const std::string what = unpacker.take_text(), hint = unpacker.take_text();
  if (code < 1 || code > 255) return std::nullopt;               // exit codes
  if (what.find('\0') != std::string::npos) return std::nullopt; // Error holds a C string
  return if_complete(unpacker, Error(static_cast<ExitCode>(code), what, hint));
}

// ---- address of rank 0 ----

std::optional<int> read_port(std::string_view text) {
  const std::optional<int> port = parse_number<int>(text);
  return port && *port >= 1 && *port <= 65535 ? port : std::nullopt;
}

std::string to_text(const Publication& publication) {
  std::string text(kVersionedTitle);
  if (!publication.key.empty()) text += "key " + publication.key + "\n";
  text += "port " + std::to_string(publication.port) + "\n";
  for (const std::string& address : publication.addresses) text += "address " + address + "\n";
  return text + "end\n";
}

std::optional<Publication> read_publication(std::string_view text) {
  if (!text.starts_with(kVersionedTitle) || text.size() > kPublicationBytes) return std::nullopt;
  text.remove_prefix(kVersionedTitle.size());
  Publication publication;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end), name = line.substr(0, line.find(' '));
    const std::string_view value = line.substr(std::min(line.size(), name.size() + 1));
    text.remove_prefix(end + 1);
    if (line == "end") {
      const bool whole = text.empty() && publication.port > 0 && !publication.addresses.empty();
      return whole ? std::optional(publication) : std::nullopt;
    }
    if (name == "key" && key_of_hex(value)) {
      publication.key = value;
    } else if (const auto port = name == "port" ? read_port(value) : std::nullopt) {
      publication.port = *port;
    } else if (name == "address" && !value.empty()) {
      publication.addresses.emplace_back(value);
    } else {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

bool is_publication(std::string_view text) { return text.starts_with(kTitle); }

bool may_become_publication(std::string_view text) { return is_publication(text) || kTitle.starts_with(text); }

} // namespace gpt2
