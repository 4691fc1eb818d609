#include "engine/rendezvous/messages.h"

#include "engine/network/wire.h"

namespace gpt2 {
namespace {

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

} // namespace gpt2
