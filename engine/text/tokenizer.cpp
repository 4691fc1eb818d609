#include "engine/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "engine/base/json_reader.h"
#include "engine/base/utf8.h"
#include "engine/system/content_hash.h"
#include "engine/system/files.h"
#include "engine/system/stopped.h"
#include "engine/text/bpe_merges.h"
#include "engine/text/pretokenize.h"

namespace gpt2 {
namespace fs = std::filesystem;
namespace {

constexpr int kMerges = 50000;
constexpr char kHint[] =
    "run tools/install_deps.sh, or give a folder with GPT-2's encoder.json and vocab.bpe by --tokenizer";

std::string read_table(const fs::path& path) {
  try {
    return read_text_file(path.string());
  } catch (const Error& error) {
    throw Error(ExitCode::data, error.what(), kHint);
  }
}

// The tables write each byte as a printable character: 188 bytes as themselves (Latin-1), the other 68 as U+0100 and
// up. Token ids 0 to 255 follow the same order: first the 188, then the 68.
struct ByteAlphabet {
  std::array<uint8_t, 256> byte_of_id;
  std::array<uint16_t, 256> id_of_byte;
  std::unordered_map<uint32_t, uint8_t> byte_of_character;

  ByteAlphabet() {
    auto printable = [](int b) { return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xFF && b != 0xAD); };
    int id = 0;
    for (const bool wanted : {true, false}) {
      for (int b = 0; b < 256; b++) {
        if (printable(b) != wanted) continue;
        byte_of_character[wanted ? b : 256 + id - 188] = static_cast<uint8_t>(b);
        id_of_byte[b] = static_cast<uint16_t>(id);
        byte_of_id[id++] = static_cast<uint8_t>(b);
      }
    }
  }

  // Bytes of a spelling in the tables (UTF-8, one- and two-byte characters); empty: not a valid spelling.
  std::string bytes(std::string_view spelling) const {
    std::string result;
    for (size_t i = 0; i < spelling.size(); i++) {
      uint32_t character = static_cast<uint8_t>(spelling[i]);
      if (character >= 0x80 && i + 1 < spelling.size()) {
        character = (character & 0x1F) << 6 | (static_cast<uint8_t>(spelling[++i]) & 0x3F);
      }
      const auto found = byte_of_character.find(character);
      if (found == byte_of_character.end()) return "";
      result += static_cast<char>(found->second);
    }
    return result;
  }
};

struct Vocabulary {
  std::vector<std::string> bytes; // by token id
  std::vector<uint32_t> merges;   // by rank: left << 16 | right
};

// vocab.bpe: a version line, then "left right" per merge, in order of rank.
Vocabulary read_merges(const fs::path& path, const ByteAlphabet& alphabet) {
  Vocabulary vocabulary;
  std::unordered_map<std::string, uint16_t> ids;
  auto add = [&](std::string bytes) {
    ids.emplace(bytes, static_cast<uint16_t>(vocabulary.bytes.size()));
    vocabulary.bytes.push_back(std::move(bytes));
  };
  for (const uint8_t byte : alphabet.byte_of_id) add(std::string(1, static_cast<char>(byte)));

  std::istringstream lines(read_table(path));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) {
    const size_t gap = line.find(' ');
    const auto left = ids.find(alphabet.bytes(line.substr(0, gap)));
    const auto right = gap == std::string::npos ? ids.end() : ids.find(alphabet.bytes(line.substr(gap + 1)));
    if (left == ids.end() || right == ids.end()) {
      throw Error(ExitCode::data,
                  path.string() + ": merge " + std::to_string(vocabulary.merges.size() + 1) + " (\"" + line +
                      "\") names an unknown token",
                  kHint);
    }
    vocabulary.merges.push_back(static_cast<uint32_t>(left->second) << 16 | right->second);
    add(left->first + right->first);
  }
  if (vocabulary.merges.size() != kMerges) {
    throw Error(ExitCode::data,
                path.string() + " holds " + std::to_string(vocabulary.merges.size()) + " merges, not GPT-2's 50000",
                kHint);
  }
  vocabulary.bytes.push_back("<|endoftext|>");
  return vocabulary;
}

// encoder.json: {"spelling": id}. vocab.bpe determines the ids; a table with other ids is not GPT-2's.
void check_ids(const fs::path& path, const Vocabulary& vocabulary, const ByteAlphabet& alphabet) {
  const auto table = parse_json(read_table(path));
  const auto agrees = [&](const auto& entry) {
    const nlohmann::json& id = entry.value();
    return id.is_number_unsigned() && id < vocabulary.bytes.size() &&
           (entry.key() == vocabulary.bytes[id] || alphabet.bytes(entry.key()) == vocabulary.bytes[id]);
  };
  const auto entries = table.items();
  if (!table.is_object() || table.size() != vocabulary.bytes.size() ||
      !std::all_of(entries.begin(), entries.end(), agrees))
    throw Error(ExitCode::data, path.string() + " is not GPT-2's encoder.json, or does not match vocab.bpe", kHint);
}

// Cache of word -> ids. Direct-mapped: a new word replaces the one in its slot, so memory is fixed.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 16, kMaxIds = 7;
  struct Entry {
    uint64_t key[2] = {0, 0}; // the word's bytes, zero-padded
    uint8_t length = 0;       // in bytes; 0: empty slot
    uint8_t count = 0;
    uint16_t ids[kMaxIds] = {};
  };
  static_assert(sizeof(Entry) == 32, "two entries a cache line");

  WordCache() : entries_(size_t{1} << kBits) {}

  // The slot of a word, and whether it already holds that word. Reads up to 16 bytes, never beyond `limit`.
  std::pair<Entry*, bool> find(const char* word, size_t length, const char* limit) {
    uint64_t key[2] = {0, 0};
    if (limit - word >= 16) {
      std::memcpy(key, word, 16);
      key[0] &= length >= 8 ? ~0ull : ~(~0ull << 8 * length);
      key[1] &= length <= 8 ? 0 : length >= 16 ? ~0ull : ~(~0ull << 8 * (length - 8));
    } else {
      std::memcpy(key, word, length);
    }
    const uint64_t mixed = (key[0] ^ (key[1] * 0x9E3779B97F4A7C15ull)) * 0xD6E8FEB86659FD93ull;
    Entry& entry = entries_[(mixed ^ mixed >> 29) * 0x9E3779B97F4A7C15ull >> (64 - kBits)];
    if (entry.length == length && entry.key[0] == key[0] && entry.key[1] == key[1]) return {&entry, true};
    entry.key[0] = key[0];
    entry.key[1] = key[1];
    entry.length = 0; // until the caller has filled it
    return {&entry, false};
  }

 private:
  static constexpr int kBits = 15; // 1 MiB a thread
  std::vector<Entry> entries_;
};

} // namespace

struct Tokenizer::Tables {
  // Buffers of one encode call, borrowed from a pool: words stay cached between calls, and there is one Scratch per
  // concurrent call.
  struct Scratch {
    Splitter splitter;
    WordCache cache;
  };

  ByteAlphabet alphabet;
  Vocabulary vocabulary;
  MergeTable merges;
  std::string hash;
  std::mutex idle_mutex;
  std::vector<std::unique_ptr<Scratch>> idle;

  explicit Tables(const fs::path& folder)
      : vocabulary(read_merges(folder / "vocab.bpe", alphabet)), merges(vocabulary.merges) {
    check_ids(folder / "encoder.json", vocabulary, alphabet);
    const std::string files = read_table(folder / "encoder.json") + read_table(folder / "vocab.bpe");
    hash = hash_of(std::as_bytes(std::span(files)));
    give_back(std::make_unique<Scratch>()); // a PCRE2 without Unicode fails here, not at the first text
  }

  std::unique_ptr<Scratch> borrow() {
    const std::lock_guard lock(idle_mutex);
    if (idle.empty()) return std::make_unique<Scratch>();
    auto scratch = std::move(idle.back());
    idle.pop_back();
    return scratch;
  }

  void give_back(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(idle_mutex);
    idle.push_back(std::move(scratch));
  }

  // Both write ids to `out` and return the end. A token is at least one byte, so text.size() ids suffice.
  uint16_t* encode_word(std::string_view word, uint16_t* out, const std::atomic<bool>* stop) const {
    for (size_t i = 0; i < word.size(); i++) out[i] = alphabet.id_of_byte[static_cast<uint8_t>(word[i])];
    return out + merges.merge({out, word.size()}, stop);
  }

  uint16_t* encode_valid(std::string_view text, uint16_t* out, Scratch& scratch, const std::atomic<bool>* stop) const {
    const char* const limit = text.data() + text.size();
    for (size_t begin = 0, end; begin < text.size(); begin = end) {
      if (stop && *stop) throw Stopped{};
      end = scratch.splitter.next(text, begin);
      const std::string_view word = text.substr(begin, end - begin);
      if (word.size() > WordCache::kMaxBytes) {
        out = encode_word(word, out, stop);
        continue;
      }
      const auto [entry, known] = scratch.cache.find(word.data(), word.size(), limit);
      if (known) {
        for (int i = 0; i < entry->count; i++) *out++ = entry->ids[i];
        continue;
      }
      uint16_t* const first = out;
      out = encode_word(word, out, stop);
      const size_t count = out - first;
      if (count <= WordCache::kMaxIds) {
        std::copy(first, out, entry->ids);
        entry->count = static_cast<uint8_t>(count);
        entry->length = static_cast<uint8_t>(word.size());
      }
    }
    return out;
  }
};

Tokenizer::Tokenizer(const std::string& folder) : tables_(std::make_unique<Tables>(folder)) {}
Tokenizer::~Tokenizer() = default;

const std::string& Tokenizer::hash() const { return tables_->hash; }

std::vector<uint16_t> Tokenizer::encode(std::string_view text) const {
  std::vector<uint16_t> tokens;
  encode(text, tokens);
  return tokens;
}

// Bytes that are not UTF-8 become single-byte tokens; the valid text before and after them is encoded separately. So
// every byte string round-trips, and valid text is encoded as by tiktoken.
void Tokenizer::encode(std::string_view text, std::vector<uint16_t>& append_to, const std::atomic<bool>* stop) const {
  auto scratch = tables_->borrow();
  const size_t before = append_to.size();
  append_to.resize(before + text.size());
  uint16_t* out = append_to.data() + before;
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    out = tables_->encode_valid(text.substr(0, valid), out, *scratch, stop);
    text.remove_prefix(valid);
    if (text.empty()) break;
    *out++ = tables_->alphabet.id_of_byte[static_cast<uint8_t>(text.front())];
    text.remove_prefix(1);
  }
  append_to.resize(out - append_to.data());
  tables_->give_back(std::move(scratch));
}

std::string Tokenizer::decode(const std::vector<uint16_t>& tokens) const {
  const auto& bytes = tables_->vocabulary.bytes;
  std::string text;
  for (const uint16_t token : tokens) {
    if (token >= bytes.size()) {
      throw Error(ExitCode::data, "token id " + std::to_string(token) + " is beyond GPT-2's vocabulary of 50257",
                  "check that the tokens were made with GPT-2's tables");
    }
    text += bytes[token];
  }
  return text;
}

std::string Tokenizer::find_folder(const std::string& asked_for) {
  if (!asked_for.empty()) return asked_for;
  if (const char* named = std::getenv("GPT2_TOKENIZER"); named && *named) return named;
  return fs::path(find_in_tree(".deps/gpt2_bpe/vocab.bpe")).parent_path().string();
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& asked_for) {
  const std::string folder = Tokenizer::find_folder(asked_for);
  if (!folder.empty()) return std::make_unique<Tokenizer>(folder);
  throw Error(ExitCode::data, "GPT-2's tokenizer tables are not installed",
              "run tools/install_deps.sh, or give their folder by --tokenizer");
}

} // namespace gpt2
