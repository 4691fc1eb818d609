#include "tools/prepare_data/document_reader.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/rng.h"
#include "engine/system/files.h"
#include "tests/expect_error.h"
#include "tests/sample_stories.h"
#include "tests/temporary_folder.h"
#include "tests/tokenizer_tables.h"

using namespace gpt2;

namespace {

// All documents of some inputs, their chunks joined.
std::vector<std::string> read_documents(const DocumentReader::Options& options, size_t* chunks = nullptr) {
  DocumentReader reader(options);
  std::vector<std::string> documents;
  int64_t count = 0;
  for (DocumentChunk chunk; reader.next(chunk);) {
    if (chunk.first) documents.emplace_back();
    CHECK(chunk.document + 1 == static_cast<int64_t>(documents.size()));
    CHECK(chunk.number == count++);
    documents.back() += chunk.json ? json_document(chunk, "text") : chunk.text;
    if (chunks) ++*chunks;
    if (!chunk.json) CHECK(chunk.text.size() <= 17 * options.chunk_bytes);
  }
  return documents;
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

TEST_CASE("chunks are bounded, and joined they are the document") {
  const TemporaryFolder folder;
  std::string text;
  for (const std::string& story : testing::sample_stories(1, 50)) text += story + (text.size() % 3 ? " " : "\n");
  const std::string no_place_to_cut(5000, 'x');
  write_file_atomic(folder / "a.txt", text + no_place_to_cut);
  for (const size_t bytes : {10, 64, 1000}) {
    size_t chunks = 0;
    CHECK(read_documents({.inputs = {folder / "a.txt"}, .input_format = "", .chunk_bytes = bytes}, &chunks) ==
          Documents{text + no_place_to_cut});
    CHECK(chunks > text.size() / bytes / 4);
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

TEST_CASE("a reader goes on behind any chunk with the same chunks") {
  const TemporaryFolder folder;
  const std::vector<std::string> told = testing::sample_stories(1, 40), others = testing::sample_stories(2, 40);
  std::string text, lines;
  for (size_t i = 0; i < told.size(); i++) {
    text += told[i] + (i % 5 == 4 ? "\n<|endoftext|>\n" : i % 3 ? " " : "\n");
    lines += json_line(others[i]) + (i % 7 ? "" : "\n");
  }
  write_file_atomic(folder / "a.txt", text + std::string(700, 'x'));
  write_file_atomic(folder / "b.jsonl", lines);
  write_file_atomic(folder / "c.txt", text);
  const DocumentReader::Options options{
      .inputs = {folder / "a.txt", folder / "b.jsonl", folder / "c.txt"}, .input_format = "", .chunk_bytes = 100};
  const auto rest_of = [&](const DocumentReader::Position& from) {
    DocumentReader reader(options);
    reader.go_to(from);
    std::vector<std::string> rest;
    for (DocumentChunk chunk; reader.next(chunk);)
      rest.push_back(std::to_string(chunk.number) + " " + std::to_string(chunk.document) + " " +
                     std::to_string(chunk.first) + " " + std::to_string(chunk.line) + chunk.path + chunk.text);
    return rest;
  };
  const std::vector<std::string> all = rest_of({});
  REQUIRE(all.size() > 100);
  DocumentReader reader(options);
  size_t taken = 0;
  for (DocumentChunk chunk; reader.next(chunk);) {
    taken++;
    if (taken % 7 != 1) continue;
    CAPTURE(taken);
    REQUIRE(rest_of(reader.position()) == std::vector(all.begin() + static_cast<ptrdiff_t>(taken), all.end()));
  }
  CHECK(taken == all.size());
  CHECK(reader.bytes_read() == static_cast<int64_t>(2 * text.size() + 700 + lines.size()));
}

TEST_CASE("folders and patterns stand for their files, sorted; what is hidden stays so") {
  const TemporaryFolder folder;
  for (const char* const name : {"b.txt", "a.jsonl", "sub/c.txt", ".hidden/d.txt", "notes.md"}) {
    make_folders(std::filesystem::path(folder / name).parent_path().string());
    write_file_atomic(folder / name, json_line(name));
  }
  const auto paths = [&](const std::string& word) {
    std::vector<std::string> found;
    for (const InputFile& file : find_inputs({word}, "")) found.push_back(file.path);
    return found;
  };
  CHECK(paths(folder.path()) == Documents{folder / "a.jsonl", folder / "b.txt", folder / "sub/c.txt"});
  CHECK(paths(folder / "?.*") == Documents{folder / "a.jsonl", folder / "b.txt"});
  CHECK(mentions(expect_error([&] { paths(folder / "*.parquet"); }), "no file matches"));
  CHECK(mentions(expect_error([&] { paths(folder / "notes.md"); }), "does not give its format"));
  CHECK(mentions(expect_error([&] { paths(folder / "none.txt"); }), "none.txt"));
  make_folders(folder / "empty");
  CHECK(mentions(expect_error([&] { paths(folder / "empty"); }), "holds no .txt"));
}

TEST_CASE("a name tells format and compression") {
  const auto describe = [](const std::string& path, const std::string& format = "") {
    const InputFile file = input_file(path, format);
    return std::to_string(static_cast<int>(file.format)) + std::to_string(static_cast<int>(file.compression));
  };
  CHECK(describe("a.txt") == "00");
  CHECK(describe("a.b.jsonl.gz") == "11");
  CHECK(describe("a.txt.zst") == "02");
  CHECK(describe("a.parquet") == "20");
  CHECK(describe("a.dump.gz", "jsonl") == "11");
  CHECK(describe("-", "txt") == "00");
  for (const char* const path : {"-", "a.gz", "a", "a.parquet.gz", "a.zip", ".txt"}) {
    CAPTURE(path);
    CHECK(expect_error([&] { input_file(path, ""); }).code() == ExitCode::usage);
  }
}
