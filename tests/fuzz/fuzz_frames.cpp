// What a rank reads from a connection or from rank 0's file. The first byte of an input chooses the reader, the second
// the number of ranks; the rest is what the reader gets. What a reader takes, it writes again as the same bytes.
#include <sys/socket.h>

#include <algorithm>

#include "engine/network/handshake.h"
#include "engine/rendezvous/launcher.h"
#include "engine/rendezvous/messages.h"
#include "engine/rendezvous/published_file.h"
#include "tests/fuzz/fuzz_input.h"

using namespace gpt2;

namespace {

const Key kKey = {1, 2, 3};

// Strangers' bytes, in parts as a network delivers them: small frames or none, and no more memory than those need.
void read_frames(std::string_view bytes, size_t part) {
  FrameReader reader;
  while (!bytes.empty()) {
    const size_t taken = std::min({part, reader.room(), bytes.size()});
    reader.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    bool anything = false;
    while (const auto frame = reader.next()) {
      fuzz::require(frame->body.size() <= kHandshakeBytes && frame->type <= FrameType::farewell);
      anything = true;
    }
    if (taken == 0 && !anything) break;
  }
  fuzz::require(bytes.empty() || reader.is_broken());
}

// A peer's sealed frames, cut from the input; a byte of them is altered, which is noticed before the frame is read.
void read_sealed_frames(std::string_view bytes, size_t altered) {
  FrameMac seal(kKey);
  std::string sent;
  size_t frames = 0;
  for (; bytes.size() > 1; ++frames) {
    const size_t size = std::min<size_t>(static_cast<unsigned char>(bytes[1]), bytes.size() - 2);
    sent += to_bytes(static_cast<FrameType>(static_cast<unsigned char>(bytes[0]) % 12), bytes.substr(2, size), &seal);
    bytes.remove_prefix(2 + size);
  }
  const bool alters = altered > 0 && altered <= sent.size();
  if (alters) sent[altered - 1] = static_cast<char>(sent[altered - 1] ^ 0x20);
  FrameReader reader;
  reader.expect_macs(kKey);
  reader.append(sent);
  size_t read = 0;
  while (reader.next()) ++read;
  fuzz::require(alters ? read < frames : read == frames && !reader.is_broken());
}

// Who does not know the secret does not get through, whatever it says, on either side.
void shake_hands(std::string_view bytes, bool as_client) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return;
  const Socket stranger(ends[0]);
  Handshake handshake = as_client ? Handshake::as_client(Socket(ends[1]), kKey, Handshake::Purpose::joining, "who")
                                  : Handshake::as_server(Socket(ends[1]), kKey, Handshake::Purpose::joining);
  handshake.advance();
  [[maybe_unused]] const ssize_t sent = ::send(stranger.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  for (int i = 0; i < 2; ++i) fuzz::require(handshake.advance() != Handshake::State::done);
}

template <class Message>
void require_same(const std::optional<Message>& message, std::string_view bytes) {
  if (message) fuzz::require(to_bytes(*message) == bytes);
}

void read_published(std::string_view text) {
  const auto publication = read_publication(text);
  if (!publication) return;
  fuzz::require(is_publication(text) && may_become_publication(text) && publication->port > 0);
  const auto again = read_publication(to_text(*publication));
  fuzz::require(again && to_text(*again) == to_text(*publication));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 2) return 0;
  const std::string_view rest = fuzz::text_of(bytes + 2, size - 2);
  const int number = bytes[1];
  switch (bytes[0] % 11) {
    case 0:
      read_frames(rest, static_cast<size_t>(1 + number));
      break;
    case 1:
      read_sealed_frames(rest, static_cast<size_t>(number));
      break;
    case 2:
      shake_hands(rest, number % 2 == 0);
      break;
    case 3:
      require_same(read_hello(rest), rest);
      break;
    case 4:
      require_same(read_roster(rest, 1 + number), rest);
      break;
    case 5:
      require_same(read_heartbeat(rest), rest);
      break;
    case 6:
      require_same(read_texts(rest, 1 + number), rest);
      break;
    case 7:
      require_same(read_error(rest), rest);
      break;
    case 8:
      read_published(rest);
      break;
    case 9:
      if (const auto port = read_port(rest)) fuzz::require(*port >= 1 && *port <= 65535);
      break;
    default:
      fuzz::expect_answer([&] { fuzz::require(!parse_master(std::string(rest)).host.empty()); });
  }
  return 0;
}
