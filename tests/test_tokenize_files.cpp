#include "engine/data/tokenize_files.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/files.h"
#include "engine/base/rng.h"
#include "engine/data/sample_text.h"
#include "engine/data/shard.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tests/tokenizer_tables.h"

using namespace gpt2;

namespace {

// All documents of some inputs, their pieces joined.
std::vector<std::string> read_documents(const DocumentReader::Options& options, size_t* pieces = nullptr) {
  DocumentReader reader(options);
  std::vector<std::string> documents;
  for (DocumentPiece piece; reader.next(piece);) {
    if (piece.first) documents.emplace_back();
    CHECK(piece.document + 1 == static_cast<int64_t>(documents.size()));
    documents.back() += piece.json ? json_document(piece, "text") : piece.text;
    if (pieces) ++*pieces;
    if (!piece.json) CHECK(piece.text.size() <= 17 * options.piece_bytes);
  }
  return documents;
}

std::vector<uint16_t> read_shard(const std::string& path) {
  const auto shard = open_shard(path);
  std::vector<uint16_t> tokens(shard->tokens());
  shard->read(0, tokens);
  return tokens;
}

std::vector<uint16_t> read_shards(const std::vector<std::string>& paths) {
  std::vector<uint16_t> tokens;
  for (const std::string& path : paths) {
    const auto shard = read_shard(path);
    tokens.insert(tokens.end(), shard.begin(), shard.end());
  }
  return tokens;
}

std::string json_line(const std::string& text) { return nlohmann::json{{"id", 7}, {"text", text}}.dump() + "\n"; }

using Documents = std::vector<std::string>;

} // namespace

TEST_CASE("text files are cut at separator lines") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.txt",
                    "one\ntwo\n<|endoftext|>\n<|endoftext|>\nthree <|endoftext|>\n\n<|endoftext|>\r\nfour\n");
  write_file_atomic(folder / "b.txt", "");
  write_file_atomic(folder / "c.txt", "five");
  DocumentReader::Options options{.inputs = {folder / "a.txt", folder / "b.txt", folder / "c.txt"}, .input_format = ""};
  CHECK(read_documents(options) == Documents{"one\ntwo", "three <|endoftext|>\n", "four\n", "five"});
  options.separator = "";
  write_file_atomic(folder / "a.txt", "\n\none\ntwo\n\n\nthree");
  CHECK(read_documents(options) == Documents{"one\ntwo", "three", "five"});
}

TEST_CASE("JSON lines give their field, blank lines nothing") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.jsonl",
                    json_line("one\n\"two\" é") + "\n" + json_line("three") + R"({"text": "\u8a9e"})");
  CHECK(read_documents({.inputs = {folder / "a.jsonl"}, .input_format = ""}) ==
        Documents{"one\n\"two\" é", "three", "語"});
}

TEST_CASE("pieces are bounded, and joined they are the document") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 50; i++) text += sample_story(1, i) + (i % 3 ? " " : "\n");
  const std::string no_place_to_cut(5000, 'x');
  write_file_atomic(folder / "a.txt", text + no_place_to_cut);
  for (const size_t bytes : {10, 64, 1000}) {
    size_t pieces = 0;
    CHECK(read_documents({.inputs = {folder / "a.txt"}, .input_format = "", .piece_bytes = bytes}, &pieces) ==
          Documents{text + no_place_to_cut});
    CHECK(pieces > text.size() / bytes / 4);
  }
}

TEST_CASE("a safe cut leaves the tokens as they are") {
  CHECK(last_safe_cut("one two  ") == 7);
  CHECK(last_safe_cut("one two") == 3);
  CHECK(last_safe_cut(" one") == 0);
  CHECK(last_safe_cut("a\u00A0 b") == 0); // the no-break space is white space
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const std::vector<std::string> fragments = {" ",      "\n",     "a",  "don't", "é",  "語",   "\u00A0",
                                              "\u3000", "\u2003", "\t", "12",    "?!", "\xFF", "🙂"};
  int cuts = 0;
  for (uint64_t seed = 0; seed < 2000; seed++) {
    std::string text;
    for (int i = 0; i < 12; i++) text += fragments[Rng(seed).bits(i) % fragments.size()];
    const size_t cut = last_safe_cut(text);
    if (cut == 0) continue;
    std::vector<uint16_t> joined = t->encode(text.substr(0, cut));
    t->encode(text.substr(cut), joined);
    CAPTURE(text);
    REQUIRE(joined == t->encode(text));
    cuts++;
  }
  CHECK(cuts > 500);
}

TEST_CASE("shards hold every document in order, whatever the threads, sizes and formats") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  std::string text, lines;
  std::vector<uint16_t> expected;
  for (int i = 0; i < 300; i++) {
    const std::string story = sample_story(1, i);
    text += (i ? "\n<|endoftext|>\n" : "") + story;
    lines += json_line(story);
    expected.push_back(Tokenizer::kEndOfText);
    t->encode(story, expected);
  }
  write_file_atomic(folder / "a.txt", text);
  write_file_atomic(folder / "a.jsonl", lines);
  for (const std::string input : {"a.txt", "a.jsonl"}) {
    for (const std::string extension : {"bin", "h5"}) {
      for (const int threads : {1, 3}) {
        TokenizeOptions options;
        options.documents = {.inputs = {folder / input}, .input_format = "", .piece_bytes = 3000};
        options.output = folder / ("new/folder/" + input);
        options.format = extension;
        options.shard_tokens = 10000;
        options.threads = threads;
        options.overwrite = threads > 1;
        const TokenizeReport report = tokenize_files(*t, options);
        CHECK(report.shards.size() == (expected.size() + 9999) / 10000);
        CHECK(report.shards[1] == folder / ("new/folder/" + input + "/train_000001." + extension));
        CHECK(read_shard(report.shards[0]).size() == 10000);
        CHECK((read_shards(report.shards) == expected));
        CHECK(report.documents == 300);
        CHECK(report.train_tokens == static_cast<int64_t>(expected.size()));
      }
    }
  }
}

TEST_CASE("validation takes its share of whole documents") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  std::string lines;
  std::vector<uint16_t> train, val;
  for (int i = 0; i < 100; i++) {
    lines += json_line("document " + std::to_string(i));
    auto& tokens = i % 10 == 9 ? val : train;
    tokens.push_back(Tokenizer::kEndOfText);
    t->encode("document " + std::to_string(i), tokens);
  }
  write_file_atomic(folder / "a.jsonl", lines);
  TokenizeOptions options;
  options.documents.inputs = {folder / "a.jsonl"};
  options.output = folder / "set";
  options.val_fraction = 0.1;
  tokenize_files(*t, options);
  CHECK(read_shard(folder / "set/train_000000.bin") == train);
  CHECK(read_shard(folder / "set/val_000000.bin") == val);
}

TEST_CASE("bad input is named, and nothing is overwritten") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.jsonl", json_line("fine") + "{\"text\": 5}\nnot json\n" + json_line("also fine"));
  write_file_atomic(folder / "empty.txt", "\n");
  TokenizeOptions options;
  options.output = folder / "out";
  auto error_for = [&](const std::string& input) {
    options.documents.inputs = {folder / input};
    return expect_error([&] { tokenize_files(*t, options); });
  };
  CHECK(error_for("missing.txt").code() == ExitCode::data);
  CHECK(mentions(error_for("missing.txt"), "missing.txt"));
  CHECK(error_for("a.zip").code() == ExitCode::usage);
  CHECK(mentions(error_for("a.jsonl"), "a.jsonl:2 has no string in a field \"text\""));
  options.documents.separator = "";
  CHECK(error_for("empty.txt").code() == ExitCode::data);
  CHECK_FALSE(std::filesystem::exists(folder / "out/train_000000.bin"));

  options.skip_bad_lines = true;
  options.documents.inputs = {folder / "a.jsonl"};
  CHECK(tokenize_files(*t, options).bad_lines == 2);
  const auto before = read_shard(folder / "out/train_000000.bin");
  const Error exists = error_for("a.jsonl");
  CHECK(exists.code() == ExitCode::usage);
  CHECK(mentions(exists, "out/train_000000.bin exists"));
  CHECK(read_shard(folder / "out/train_000000.bin") == before);

  options.output = folder / "new.h5";
  const Error file_name = error_for("a.jsonl");
  CHECK(file_name.code() == ExitCode::usage);
  CHECK(contains(file_name.hint(), "--output " + folder / "new --format h5"));
}

TEST_CASE("validation shards of another text are in the way of training shards alone") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.txt", "one\n<|endoftext|>\ntwo");
  TokenizeOptions options;
  options.documents.inputs = {folder / "a.txt"};
  options.output = folder / "out";
  options.val_fraction = 0.5;
  tokenize_files(*t, options);
  std::filesystem::remove(folder / "out/train_000000.bin");
  options.val_fraction = 0;
  CHECK(mentions(expect_error([&] { tokenize_files(*t, options); }), "out/val_000000.bin exists"));
  options.overwrite = true;
  tokenize_files(*t, options);
  CHECK_FALSE(std::filesystem::exists(folder / "out/val_000000.bin"));
}

TEST_CASE("a producer that fails on the way leaves no shards, whatever it gave before") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 100; i++) lines += json_line("document " + std::to_string(i));
  write_file_atomic(folder / "piped.jsonl", lines + R"({"parquet_to_jsonl_failed": "b.parquet: broken"})" + "\n");
  TokenizeOptions options;
  options.documents.inputs = {folder / "piped.jsonl"};
  options.output = folder / "out";
  options.shard_tokens = 50;
  options.skip_bad_lines = true;
  const Error error = expect_error([&] { tokenize_files(*t, options); });
  CHECK(error.code() == ExitCode::data);
  CHECK(mentions(error, "b.parquet: broken"));
  CHECK(std::filesystem::is_empty(folder / "out"));
}
