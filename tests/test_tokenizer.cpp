#include "engine/text/tokenizer.h"

#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/base/rng.h"
#include "engine/base/utf8.h"
#include "engine/system/files.h"
#include "engine/system/stopped.h"
#include "engine/text/bpe_merges.h"
#include "engine/text/pretokenize.h"
#include "tests/expect_error.h"
#include "tests/shared_data.h"
#include "tests/temporary_folder.h"
#include "tests/tokenizer_tables.h"

using namespace gpt2;

namespace {

// Random text out of the given fragments.
std::string random_text(const std::vector<std::string>& fragments, int count, uint64_t seed) {
  const Rng rng(seed);
  std::string text;
  for (int i = 0; i < count; i++) text += fragments[rng.bits(i) % fragments.size()];
  return text;
}

std::string random_bytes(size_t count, uint64_t seed) {
  const Rng rng(seed);
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; i++) bytes[i] = static_cast<char>(rng.bits(i));
  return bytes;
}

std::vector<std::string> pieces(std::string_view text, bool by_pattern_alone = false) {
  static const Splitter splitter;
  std::vector<std::string> result;
  for (size_t begin = 0, end; begin < text.size(); begin = end) {
    end = by_pattern_alone ? splitter.next_by_pattern(text, begin) : splitter.next(text, begin);
    result.emplace_back(text.substr(begin, end - begin));
  }
  return result;
}

using Pieces = std::vector<std::string>;

} // namespace

TEST_CASE("text is split as by GPT-2's pattern") {
  CHECK(pieces("Hello world") == Pieces{"Hello", " world"});
  CHECK(pieces("it's 'snow', I'M") == Pieces{"it", "'s", " '", "snow", "',", " I", "'", "M"});
  CHECK(pieces("a  b \n c\n\nd  ") == Pieces{"a", " ", " b", " \n", " c", "\n", "\n", "d", "  "});
  CHECK(pieces("x1 23?! é̀t") == Pieces{"x", "1", " 23", "?!", " é", "̀", "t"});
  // No-break space and next-line are white space; the Mongolian vowel separator is not.
  CHECK(pieces("a\u00A0b\u0085c") == Pieces{"a", "\u00A0", "b", "\u0085", "c"});
  CHECK(pieces("a\u180E\u180E!b") == Pieces{"a", "\u180E\u180E!", "b"});
}

TEST_CASE("the ASCII path splits exactly as PCRE2") {
  std::vector<std::string> ascii;
  for (int c = 0; c < 128; c++) ascii.emplace_back(1, static_cast<char>(c));
  const std::vector<std::string> tricky = {" ",    " ",    "\n",  "\t",     "'",
                                           "'s",   "'ll",  "'re", "'v",     "a",
                                           "Z",    "7",    "42",  "-",      "...",
                                           "\r\n", "é",    "’",   "\u00A0", "\u2003",
                                           "語",   "🙂", "²",   "\u180E", std::string(1, '\0')};
  for (uint64_t seed = 0; seed < 200; seed++) {
    for (const auto& fragments : {ascii, tricky}) {
      const std::string text = random_text(fragments, 300, seed);
      REQUIRE(pieces(text) == pieces(text, true));
    }
  }
}

TEST_CASE("both ways of merging agree, and the long one can be stopped") {
  // A random table over the 256 bytes and what they merge into.
  const Rng rng(5);
  std::vector<uint32_t> pairs;
  for (uint32_t rank = 0; rank < 400; rank++) {
    // The first merges are of a few letters, so that they apply often; a part is made before it is merged.
    const uint32_t known = rank < 40 ? 6 : 256 + static_cast<uint32_t>(pairs.size());
    auto draw = [&](uint64_t i) { return rng.bits(i) % 3 ? rng.bits(i + 7777) % 6 : rng.bits(i + 9999) % known; };
    const uint32_t pair = static_cast<uint32_t>(draw(2 * rank) << 16 | draw(2 * rank + 1));
    if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) pairs.push_back(pair);
  }
  const MergeTable table(pairs);
  CHECK(table.find(pairs[3] >> 16, pairs[3] & 0xFFFF) == 259);
  CHECK(table.find(60000, 60000) == MergeTable::kNone);
  size_t merged = 0;
  for (uint64_t seed = 0; seed < 300; seed++) {
    std::vector<uint16_t> scanned(1 + seed), by_rank;
    for (size_t i = 0; i < scanned.size(); i++) scanned[i] = Rng(seed).bits(i) % 6;
    by_rank = scanned;
    scanned.resize(table.merge_by_scan(scanned));
    by_rank.resize(table.merge_by_rank(by_rank));
    REQUIRE(scanned == by_rank);
    merged += 1 + seed - scanned.size();
  }
  CHECK(merged > 10000);
  const std::atomic<bool> stop = true;
  std::vector<uint16_t> many(1000, static_cast<uint16_t>(pairs[0] >> 16));
  for (size_t i = 1; i < many.size(); i += 2) many[i] = static_cast<uint16_t>(pairs[0]);
  CHECK_THROWS_AS(table.merge(many, &stop), Stopped);
}

TEST_CASE("known texts give GPT-2's tokens") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  using Ids = std::vector<uint16_t>;
  CHECK(t->encode("") == Ids{});
  CHECK(t->encode("Hello world") == Ids{15496, 995});
  CHECK(t->encode("\n\n\n") == Ids{628, 198});
  CHECK(t->encode("naïve café résumé") == Ids{2616, 38776, 40304, 40560, 16345, 2634});
  CHECK(t->encode("I'm you're he'll") == Ids{40, 1101, 345, 821, 339, 1183});
  CHECK(t->encode("日本語のテキスト") == Ids{33768, 98, 17312, 105, 45739, 252, 5641, 24336, 25084, 43302});
  CHECK(t->encode("<|endoftext|>").size() > 1); // ordinary text
  CHECK(t->decode({Tokenizer::kEndOfText}) == "<|endoftext|>");

  Ids appended = {1, 2};
  t->encode("Hello world", appended);
  CHECK(appended == Ids{1, 2, 15496, 995});
}

TEST_CASE("the golden file is met exactly") {
  const std::string path = find_shared("data/gpt2_bpe/golden.jsonl");
  const Tokenizer* t = tokenizer();
  if (!t) return;
  if (path.empty()) {
    MESSAGE("skipped: no golden.jsonl (GPT2_SHARED)");
    return;
  }
  std::ifstream file(path);
  int cases = 0;
  for (std::string line; std::getline(file, line); cases++) {
    const auto golden = nlohmann::json::parse(line);
    const std::string text = golden["text"];
    CAPTURE(text);
    CHECK(t->encode(text) == golden["ids"].get<std::vector<uint16_t>>());
    CHECK(t->decode(t->encode(text)) == text);
  }
  CHECK(cases == 302);
}

TEST_CASE("every token is what its own bytes encode to, or its bytes are split by the pattern") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const Splitter splitter;
  int single = 0;
  for (int id = 0; id < 50256; id++) {
    const std::string bytes = t->decode({static_cast<uint16_t>(id)});
    const auto ids = t->encode(bytes);
    REQUIRE(t->decode(ids) == bytes);
    if (valid_utf8_prefix(bytes) != bytes.size() || splitter.next(bytes, 0) != bytes.size()) continue;
    CAPTURE(bytes);
    CHECK(ids == std::vector<uint16_t>{static_cast<uint16_t>(id)});
    single++;
  }
  CHECK(single > 49000);
}

TEST_CASE("any bytes survive the round trip") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  for (uint64_t seed = 0; seed < 100; seed++) {
    const std::string bytes = random_bytes(1 + seed * 7, seed);
    REQUIRE(t->decode(t->encode(bytes)) == bytes);
  }
  // A bad byte stands alone; the text around it is encoded as if it ended and began there.
  std::vector<uint16_t> expected = t->encode("good text  ");
  expected.push_back(t->encode("\xFF").at(0));
  t->encode(" more", expected);
  CHECK(t->encode("good text  \xFF more") == expected);
}

TEST_CASE("long pieces take time in proportion, not its square") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  for (const char* unit : {"a", " ", "-", "語", "ab"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const auto start = std::chrono::steady_clock::now();
    CHECK(t->decode(t->encode(text)) == text);
    // A square of a million steps would take minutes.
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  }
}

TEST_CASE("threads share one tokenizer, and cached words keep their tokens") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const std::vector<std::string> fragments = {" the", " and", "ing", "\n",  ", ", " é",
                                              "123",  "'s",   " Qu", "ark", "zz", "🙂"};
  std::vector<std::string> texts;
  std::vector<std::vector<uint16_t>> fresh;
  for (uint64_t seed = 0; seed < 40; seed++) {
    texts.push_back(random_text(fragments, 2000, seed));
    fresh.emplace_back();
    for (const std::string& piece : pieces(texts.back())) t->encode(piece, fresh.back());
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([&, i] {
      for (size_t k = 0; k < texts.size(); k++) wrong[i] += t->encode(texts[k]) != fresh[k];
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("tables that are missing or foreign are named") {
  const TemporaryFolder folder;
  const Error missing = expect_error([&] { Tokenizer(folder / "nowhere"); });
  CHECK(missing.code() == ExitCode::data);
  CHECK(mentions(missing, "nowhere/vocab.bpe"));
  CHECK(missing.hint().find("install_deps.sh") != std::string::npos);

  write_file_atomic(folder / "vocab.bpe", "#version: 0.2\nĠ t\nĠ a\n");
  CHECK(mentions(expect_error([&] { Tokenizer(folder.path()); }), "holds 2 merges"));
  write_file_atomic(folder / "vocab.bpe", "#version: 0.2\nĠ t\nxx yy\n");
  CHECK(mentions(expect_error([&] { Tokenizer(folder.path()); }), "merge 2 (\"xx yy\")"));

  const Tokenizer* t = tokenizer();
  if (!t) return;
  const std::string tables = Tokenizer::find_folder("");
  write_file_atomic(folder / "vocab.bpe", read_text_file(tables + "/vocab.bpe"));
  std::string ids = read_text_file(tables + "/encoder.json");
  write_file_atomic(folder / "encoder.json", ids.substr(0, ids.size() / 2));
  CHECK(mentions(expect_error([&] { Tokenizer(folder.path()); }), "encoder.json"));
  ids.replace(ids.find(": 995"), 5, ": 996");
  write_file_atomic(folder / "encoder.json", ids);
  CHECK(mentions(expect_error([&] { Tokenizer(folder.path()); }), "encoder.json"));

  const Error beyond = expect_error([&] { t->decode({50257}); });
  CHECK(beyond.code() == ExitCode::data);
  CHECK(mentions(beyond, "50257"));
}

TEST_CASE("the folder asked for wins over the environment") {
  CHECK(Tokenizer::find_folder("some/where") == "some/where");
  const char* before = std::getenv("GPT2_TOKENIZER");
  const std::string kept = before ? before : "";
  setenv("GPT2_TOKENIZER", "/from/environment", 1);
  CHECK(Tokenizer::find_folder("") == "/from/environment");
  CHECK(Tokenizer::find_folder("some/where") == "some/where");
  kept.empty() ? unsetenv("GPT2_TOKENIZER") : setenv("GPT2_TOKENIZER", kept.c_str(), 1);
}
