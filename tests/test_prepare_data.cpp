#include "engine/data/dataset_folder.h"
#include "tools/prepare_data/prepare_data.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/data/shard.h"
#include "engine/system/files.h"
#include "tests/expect_error.h"
#include "tests/open_files.h"
#include "tests/sample_stories.h"
#include "tests/temporary_folder.h"
#include "tests/tokenizer_tables.h"
#include "tools/common/verify_data.h"
#include "tools/prepare_data/journal.h"

using namespace gpt2;

namespace {

std::vector<uint16_t> read_shard(const std::string& path) {
  const auto shard = open_shard(path);
  std::vector<uint16_t> tokens(static_cast<size_t>(shard->tokens()));
  shard->read(0, tokens);
  return tokens;
}

std::string json_line(const std::string& text) { return nlohmann::json{{"id", 7}, {"text", text}}.dump() + "\n"; }

using Document = std::vector<uint16_t>; // its tokens, without end-of-text
using Documents = std::vector<Document>;

// A series of shards, cut at its end-of-text tokens.
Documents read_documents(const std::string& folder, const std::string& prefix, const std::string& extension = "bin") {
  Documents documents;
  for (const std::string& path : existing_shards(folder, prefix, extension)) {
    for (const uint16_t token : read_shard(path)) {
      if (token == Tokenizer::kEndOfText)
        documents.emplace_back();
      else
        documents.back().push_back(token);
    }
  }
  return documents;
}

// Every file of a folder by name, with its bytes.
std::vector<std::string> contents(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    files.push_back(entry.path().filename().string() + "\n" +
                    (entry.is_regular_file() ? read_text_file(entry.path().string()) : ""));
  std::ranges::sort(files);
  return files;
}

Documents encode_all(const Tokenizer& t, const std::vector<std::string>& texts) {
  Documents documents;
  for (const std::string& text : texts) documents.push_back(t.encode(text));
  return documents;
}

std::vector<std::string> stories(int count) { return testing::sample_stories(1, count); }

std::string as_lines(const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) lines += json_line(text);
  return lines;
}

PrepareOptions options_for(const std::string& input, const std::string& output) {
  PrepareOptions options;
  options.documents.inputs = {input};
  options.output = output;
  return options;
}

} // namespace

TEST_CASE("without a shuffle shards hold every document in order, whatever the threads, sizes and formats") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  const std::vector<std::string> texts = stories(300);
  std::string text;
  for (const std::string& story : texts) text += (text.empty() ? "" : "\n<|endoftext|>\n") + story;
  const Documents expected = encode_all(*t, texts);
  write_file_atomic(folder / "a.txt", text);
  write_file_atomic(folder / "a.jsonl", as_lines(texts));
  for (const std::string input : {"a.txt", "a.jsonl"}) {
    for (const std::string extension : {"bin", "h5"}) {
      for (const int threads : {1, 3}) {
        const std::string output = folder / ("new/folder/" + input);
        PrepareOptions options = options_for(folder / input, output);
        options.documents.chunk_bytes = 3000;
        options.format = extension;
        options.shard_tokens = 10000;
        options.threads = threads;
        options.shuffle = false;
        options.overwrite = true; // of the other format too
        options.memory = threads > 1 ? 20000 : 1 << 20;
        const DatasetManifest manifest = prepare_data(*t, options).manifest;
        CHECK(manifest.shards[1].name == "train_000001." + extension);
        CHECK(manifest.shards[0].tokens == 10000);
        CHECK((read_documents(output, "train", extension) == expected));
        CHECK(manifest.documents == 300);
        CHECK(existing_shards(output, "train", extension == "bin" ? "h5" : "bin").empty());
        CHECK_FALSE(std::filesystem::exists(prepare_folder(output)));
        CHECK(verify_dataset(output) == manifest);
      }
    }
  }
}

TEST_CASE("validation takes its share of whole documents") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  const std::vector<std::string> texts = stories(100);
  std::vector<std::string> train, val;
  for (size_t i = 0; i < texts.size(); i++) (i % 10 == 9 ? val : train).push_back(texts[i]);
  write_file_atomic(folder / "a.jsonl", as_lines(texts));
  PrepareOptions options = options_for(folder / "a.jsonl", folder / "set");
  options.val_fraction = 0.1;
  options.shuffle = false;
  prepare_data(*t, options);
  CHECK(read_documents(folder / "set", "train") == encode_all(*t, train));
  CHECK(read_documents(folder / "set", "val") == encode_all(*t, val));
}

TEST_CASE("too few documents: the last tokens are for validation, with any stop on the way") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  std::string text;
  for (const std::string& story : stories(1000)) text += story + "\n";
  write_file_atomic(folder / "a.txt", text + "<|endoftext|>\nshort\n<|endoftext|>\nshort\n<|endoftext|>\n");
  PrepareOptions options = options_for(folder / "a.txt", folder / "all");
  options.documents.chunk_bytes = 3000;
  options.shard_tokens = 5000;
  options.memory = 1 << 16;
  options.name = "set";
  options.deduplicate = true;
  prepare_data(*t, options);
  const auto tokens_of = [&](const std::string& output) {
    std::vector<uint16_t> tokens;
    for (const char* const prefix : {"train", "val"})
      for (const std::string& path : existing_shards(folder / output, prefix, "bin"))
        std::ranges::copy(read_shard(path), std::back_inserter(tokens));
    return tokens;
  };
  const auto all = static_cast<int64_t>(tokens_of("all").size());
  options.val_fraction = 0.2;
  options.output = folder / "whole";
  const PrepareReport report = prepare_data(*t, options);
  CHECK(report.val_is_tail);
  CHECK(report.manifest.duplicates == 1);
  CHECK(report.manifest.val_tokens == all / 5);
  CHECK(report.manifest.train_tokens == all - all / 5);
  CHECK((tokens_of("whole") == tokens_of("all")));
  options.output = folder / "stopped";
  int runs = 0;
  for (bool finished = false; !finished; ++runs) {
    REQUIRE(runs < 200);
    int asked = 0;
    finished = prepare_data(*t, options, {.progress = {}, .stop = [&] { return ++asked > 2 + runs; }}).finished;
  }
  CHECK(runs > 3);
  CHECK((contents(folder / "stopped") == contents(folder / "whole")));

  write_file_atomic(folder / "b.txt", stories(1).front()); // less than a sequence
  options = options_for(folder / "b.txt", folder / "small");
  options.val_fraction = 0.2;
  CHECK_FALSE(prepare_data(*t, options).val_is_tail);
}

TEST_CASE("CRLF becomes LF, with any chunks and stops") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  std::string unix_text, dos_text;
  for (const std::string& line : stories(200)) unix_text += line + "\n\n" + "word\r" + "\n";
  for (const char c : unix_text) dos_text += c == '\n' && !dos_text.ends_with('\r') ? "\r\n" : std::string(1, c);
  std::erase(unix_text, '\r');
  const std::string blank(300, '\n'); // no safe cut
  std::string dos_blank;
  for (int i = 0; i < 300; i++) dos_blank += "\r\n";
  write_file_atomic(folder / "a.txt", unix_text + blank);
  write_file_atomic(folder / "b.txt", dos_text + dos_blank);
  const auto tokens_of = [&](const std::string& input, size_t chunk_bytes) {
    PrepareOptions options = options_for(folder / input, folder / ("set_" + input));
    options.documents.chunk_bytes = chunk_bytes;
    options.shuffle = false;
    options.overwrite = true;
    int asked = 0; // stopped once, then resumed
    prepare_data(*t, options, {.progress = {}, .stop = [&] { return ++asked > 3; }});
    options.overwrite = false;
    if (is_being_prepared(options.output)) prepare_data(*t, options);
    return read_shard(options.output + "/train_000000.bin");
  };
  const std::vector<uint16_t> expected = tokens_of("a.txt", 1 << 20);
  for (const size_t chunk_bytes : {size_t{1} << 20, size_t{100}, size_t{61}}) {
    CAPTURE(chunk_bytes);
    const std::string decoded = t->decode(tokens_of("b.txt", chunk_bytes));
    CHECK(decoded == t->decode(expected));
  }
  CHECK((tokens_of("b.txt", 1 << 20) == expected));
}

TEST_CASE("faults of raw text are counted") {
  const auto faults_of = [](std::string text) { return clean_text(text, true); };
  CHECK(faults_of("caf\u00e9\n").none());
  CHECK(faults_of("caf\xE9 caf\xE9\n").invalid_utf8 == 2);
  CHECK(faults_of(std::string("a\0b\0", 4)).nul == 2);
  CHECK(faults_of("\xEF\xBB\xBFtext").utf8_marks == 1);
  CHECK(faults_of(std::string("\xFF\xFEt\0", 4)).utf16_marks == 1);
  std::string text = "\r\na\r\n\r\r\nb\r";
  CHECK(clean_text(text, false).crlf == 3);
  CHECK(text == "\na\n\r\nb\r");
  CHECK(describe({.bytes = 400, .invalid_utf8 = 12}) == "12 of 400 bytes (3.0%) not valid UTF-8");
}

TEST_CASE("a shuffle is of the whole set, by the seed, and the same for any memory and number of threads") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  const Documents in_order = encode_all(*t, stories(2000));
  write_file_atomic(folder / "a.jsonl", as_lines(stories(2000)));
  PrepareOptions options = options_for(folder / "a.jsonl", folder / "one");
  options.val_fraction = 0.05;
  prepare_data(*t, options);
  const Documents train = read_documents(folder / "one", "train"), val = read_documents(folder / "one", "val");
  CHECK(train.size() == 1900);
  CHECK(val.size() == 100);
  Documents all = train, sorted = in_order;
  all.insert(all.end(), val.begin(), val.end());
  std::ranges::sort(all);
  std::ranges::sort(sorted);
  CHECK((all == sorted));
  // Where the documents of the first half ended up: a shuffle puts about half of them into each half.
  const size_t early = std::ranges::count_if(train.begin(), train.begin() + 950, [&](const Document& document) {
    return std::find(in_order.begin(), in_order.begin() + 1000, document) != in_order.begin() + 1000;
  });
  CHECK(early > 400);
  CHECK(early < 550);

  for (const int64_t memory : {10'000, 100'000}) {
    options.memory = memory;
    options.threads = 3;
    options.output = folder / ("memory" + std::to_string(memory));
    prepare_data(*t, options);
    CHECK((contents(options.output) == contents(folder / "one")));
  }
  options.seed = 2;
  options.output = folder / "seed2";
  prepare_data(*t, options);
  CHECK((read_documents(folder / "seed2", "train") != train));
  auto again = read_documents(folder / "seed2", "train"), before = train;
  std::ranges::sort(again);
  std::ranges::sort(before);
  CHECK((again == before)); // which ones are for validation does not depend on the seed
}

TEST_CASE("of equal documents the first one stays") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  std::vector<std::string> texts = stories(200);
  texts.resize(250);
  for (size_t i = 200; i < 250; i++) texts[i] = texts[i - 200]; // where every tenth is for validation
  write_file_atomic(folder / "a.jsonl", as_lines(texts));
  for (const int64_t memory : {1 << 20, 5000}) {
    PrepareOptions options = options_for(folder / "a.jsonl", folder / std::to_string(memory));
    options.deduplicate = true;
    options.val_fraction = 0.1;
    options.memory = memory;
    const DatasetManifest manifest = prepare_data(*t, options).manifest;
    CHECK(manifest.documents == 200);
    CHECK(manifest.duplicates == 50);
    Documents found = read_documents(options.output, "train"), val = read_documents(options.output, "val");
    CHECK(val.size() == 20);
    found.insert(found.end(), val.begin(), val.end());
    std::ranges::sort(found);
    Documents expected = encode_all(*t, stories(200));
    std::ranges::sort(expected);
    CHECK((found == expected));
  }
  PrepareOptions options = options_for(folder / "a.jsonl", folder / "no");
  options.deduplicate = true;
  options.shuffle = false;
  CHECK(expect_error([&] { prepare_data(*t, options); }).code() == ExitCode::usage);
}

TEST_CASE("a long document is shuffled in chunks, all of them in one series") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  std::string text;
  for (const std::string& story : stories(100)) text += story + "\n";
  write_file_atomic(folder / "a.txt", text + "<|endoftext|>\nshort\n");
  PrepareOptions options = options_for(folder / "a.txt", folder / "set");
  options.documents.chunk_bytes = 1000;
  options.val_fraction = 0.5; // the second of the two
  const DatasetManifest manifest = prepare_data(*t, options).manifest;
  CHECK(manifest.documents == 2);
  CHECK(read_documents(folder / "set", "val") == encode_all(*t, {"short\n"}));
  std::vector<uint16_t> chunks = read_shard(folder / "set/train_000000.bin"),
                        whole = t->encode(text.substr(0, text.size() - 1));
  whole.push_back(Tokenizer::kEndOfText);
  CHECK(chunks.front() != Tokenizer::kEndOfText); // with this seed
  std::ranges::sort(chunks);
  std::ranges::sort(whole);
  CHECK((chunks == whole));
}

TEST_CASE("long documents that share a chunk and differ in another all stay whole") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  std::string beginning;
  for (const std::string& story : stories(20)) beginning += story + "\n";
  const std::string separator = "<|endoftext|>\n", one = beginning + "one way\n", two = beginning + "the other\n";
  const std::string text = one + separator + "short\n" + separator + two + separator + "short\n" + separator;
  write_file_atomic(folder / "a.txt", text);
  PrepareOptions options = options_for(folder / "a.txt", folder / "set");
  options.documents.chunk_bytes = 1000;
  options.deduplicate = true;
  const DatasetManifest manifest = prepare_data(*t, options).manifest;
  CHECK(manifest.documents == 3);
  CHECK(manifest.duplicates == 1); // the short one

  const auto drop_last = [](const std::string& document) { return document.substr(0, document.size() - 1); };
  std::vector<uint16_t> found = read_shard(folder / "set/train_000000.bin"), expected;
  for (const std::string& document : {drop_last(one), drop_last(two), drop_last("short\n")}) {
    expected.push_back(Tokenizer::kEndOfText);
    t->encode(document, expected);
  }
  std::ranges::sort(found);
  std::ranges::sort(expected);
  CHECK((found == expected));
}

TEST_CASE(
    "in order, with many small buckets and stops on the way, it has few files open and ends with the same bytes") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.jsonl", as_lines(stories(20000)));
  PrepareOptions options = options_for(folder / "a.jsonl", folder / "whole");
  options.name = "set";
  options.shuffle = false;
  prepare_data(*t, options);

  options.output = folder / "stopped";
  options.memory = 1 << 16;
  int runs = 0;
  const ptrdiff_t open_before = open_files();
  ptrdiff_t most_open = 0;
  for (PrepareReport report{.finished = false}; !report.finished; ++runs) {
    REQUIRE(runs < 200);
    int asked = 0;
    const auto stop = [&] {
      most_open = std::max(most_open, open_files());
      return ++asked > 20 + 10 * runs; // asked every 100 ms too: more each time, so that a slow machine gets on
    };
    report = prepare_data(*t, options, {.progress = {}, .stop = stop});
  }
  CHECK(runs > 3);
  CHECK(most_open < open_before + 10); // of more than 50 buckets
  CHECK((contents(options.output) == contents(folder / "whole")));
}

TEST_CASE("stopped anywhere and called again, it ends with the same bytes") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  std::string text;
  for (const std::string& story : stories(3000)) text += story + "\n<|endoftext|>\n";
  write_file_atomic(folder / "a.txt", text);
  write_file_atomic(folder / "b.jsonl", as_lines(stories(20000)));
  for (const std::string format : {"bin", "h5"}) {
    PrepareOptions options = options_for(folder / "a.txt", folder / ("whole_" + format));
    options.documents.inputs.push_back(folder / "b.jsonl");
    options.name = "set";
    options.format = format;
    options.val_fraction = 0.02;
    options.shard_tokens = 300'000;
    options.memory = 1 << 20;
    options.threads = 2;
    prepare_data(*t, options);

    options.output = folder / ("stopped_" + format);
    int runs = 0;
    for (PrepareReport report{.finished = false}; !report.finished; ++runs) {
      REQUIRE(runs < 200);
      int asked = 0; // it goes a little further each time
      report = prepare_data(*t, options, {.progress = {}, .stop = [&] { return ++asked > 2 + runs; }});
      CHECK(report.resumed == (runs > 0));
      if (!report.finished) CHECK(existing_shards(options.output, "train", format).empty());
    }
    CHECK(runs > 10);
    CHECK((contents(options.output) == contents(folder / ("whole_" + format))));
  }
}

TEST_CASE("what was begun with another order is not gone on with") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.jsonl", as_lines(stories(50)));
  PrepareOptions options = options_for(folder / "a.jsonl", folder / "set");
  const PrepareHooks at_once{.progress = {}, .stop = [] { return true; }};
  CHECK_FALSE(prepare_data(*t, options, at_once).finished);
  options.seed = 5;
  const Error other = expect_error([&] { prepare_data(*t, options); });
  CHECK(other.code() == ExitCode::usage);
  CHECK(mentions(other, "seed was 1337, is 5"));
  options.seed = 1337;
  write_file_atomic(folder / "a.jsonl", as_lines(stories(51)));
  CHECK(mentions(expect_error([&] { prepare_data(*t, options); }), "a.jsonl has changed since"));
  options.overwrite = true;
  CHECK_FALSE(prepare_data(*t, options, at_once).finished);
  options.overwrite = false; // it was allowed when it began
  CHECK(prepare_data(*t, options).manifest.documents == 51);
  CHECK(mentions(expect_error([&] { prepare_data(*t, options); }), "exists already"));
}

TEST_CASE("a damaged journal is refused, and nothing is replaced") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.jsonl", as_lines(stories(2000)));
  PrepareOptions options = options_for(folder / "a.jsonl", folder / "set");
  options.shard_tokens = 20'000;
  options.memory = 1 << 17;
  make_folders(folder / "set");
  write_file_atomic(folder / "set/train_000000.bin", "an older set");
  write_file_atomic(folder / "victim.txt", "mine");
  const std::string journal = prepare_folder(options.output) + "/journal";
  const auto stop_after = [&](int asks) {
    options.overwrite = asks == 0; // begins anew
    CHECK_FALSE(prepare_data(*t, options, {.progress = {}, .stop = [&] { return --asks < 0; }}).finished);
    options.overwrite = false;
    return nlohmann::ordered_json::parse(read_text_file(journal));
  };
  const auto refused = [&](nlohmann::ordered_json damaged, const std::string& where, const char* value) {
    CAPTURE(where);
    CAPTURE(std::string(value));
    damaged[nlohmann::ordered_json::json_pointer(where)] = nlohmann::ordered_json::parse(value);
    write_file_atomic(journal, damaged.dump());
    const Error error = expect_error([&] { prepare_data(*t, options); });
    CHECK(error.code() == ExitCode::data);
    CHECK(mentions(error, " is damaged"));
    CHECK(contains(error.hint(), "--overwrite"));
    CHECK(read_text_file(folder / "set/train_000000.bin") == "an older set");
    CHECK(read_text_file(folder / "victim.txt") == "mine");
  };
  nlohmann::ordered_json encoding = stop_after(0);
  CHECK(encoding["stage"] == 0);
  using Damage = std::pair<const char*, const char*>;
  for (const auto& [where, value] : {Damage{"/stage", "77"},
                                     {"/stage", "-1"},
                                     {"/stage", "2"},
                                     {"/bucket_bytes", "[]"},
                                     {"/bucket_bytes", "[-1]"},
                                     {"/bucket_bytes", "[1000000000000000000]"},
                                     {"/bucket_bytes", "[5, 5]"},
                                     {"/slice_bytes", "0"},
                                     {"/slice_bytes", "-1"},
                                     {"/train_limit", "-2"},
                                     {"/faults", "[]"},
                                     {"/faults/0/nul", "-1"},
                                     {"/sources", "[]"},
                                     {"/slices", "-1"},
                                     {"/records", "-1"},
                                     {"/position/input", "2"},
                                     {"/position/input", "-1"},
                                     {"/position/input", "1000000000"},
                                     {"/position/offset", "-5"},
                                     {"/position/offset", "1e300"},
                                     {"/position/pending", "-5"},
                                     {"/position/pending", "100"},
                                     {"/order", "null"},
                                     {"/order/inputs", "7"},
                                     {"/order/inputs", "[{}]"},
                                     {"/order/inputs", R"([{"path": 5}])"},
                                     {"/order/inputs", R"({"a": {"path": "a"}})"},
                                     {"/train/open_tokens", "-7"},
                                     {"/train/open_tokens", "100000000000"},
                                     {"/val/open_tokens", "5"}})
    refused(encoding, where, value);
  encoding["stage"] = 1; // shard
  for (const auto& [where, value] : {Damage{"/slices", "-1"}, {"/slices", "1000"}, {"/records", "1000000"}})
    refused(encoding, where, value);

  nlohmann::ordered_json sharding = stop_after(0);
  for (int asks = 2; sharding["train"]["shards"].empty(); ++asks) {
    REQUIRE(asks < 100);
    sharding = stop_after(asks);
  }
  const std::string good = read_text_file(journal);
  for (const int stage : {1, 2}) {
    sharding["stage"] = stage;
    for (const char* const name : {R"("../../victim.txt")", R"("val_000000.bin")", R"("train_000001.bin")", R"("")"})
      refused(sharding, "/train/shards/0/name", name);
    refused(sharding, "/train/shards/0/tokens", "-1");
    refused(sharding, "/train/shards/0/bytes", "1");
  }
  refused(sharding, "/slices", "0"); // stage 2: not all shards are written
  write_file_atomic(journal, good);
  CHECK(prepare_data(*t, options).manifest.documents == 2000);
}

TEST_CASE("shards that somebody put there meanwhile are not replaced") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.jsonl", as_lines(stories(50)));
  const PrepareOptions options = options_for(folder / "a.jsonl", folder / "set");
  CHECK_FALSE(prepare_data(*t, options, {.progress = {}, .stop = [] { return true; }}).finished);
  write_file_atomic(folder / "set/train_000000.bin", "theirs");
  CHECK(mentions(expect_error([&] { prepare_data(*t, options); }), "train_000000.bin exists already"));
  CHECK(read_text_file(folder / "set/train_000000.bin") == "theirs");
  std::filesystem::remove(folder / "set/train_000000.bin");
  CHECK(prepare_data(*t, options).resumed);
}

TEST_CASE("an old set stays whole until the new one is") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.jsonl", as_lines(stories(50)));
  PrepareOptions options = options_for(folder / "a.jsonl", folder / "set");
  options.shard_tokens = 1000;
  const DatasetManifest before = prepare_data(*t, options).manifest;
  options.overwrite = true;
  options.shard_tokens = 5000;
  CHECK_FALSE(prepare_data(*t, options, {.progress = {}, .stop = [] { return true; }}).finished);
  CHECK(verify_dataset(folder / "set") == before);
  const DatasetManifest after = prepare_data(*t, options).manifest;
  CHECK(after.shards.size() < before.shards.size());
  CHECK(existing_shards(folder / "set", "train", "bin").size() == after.shards.size());
  CHECK(verify_dataset(folder / "set") == after);
}

TEST_CASE("bad input is named, and nothing is overwritten") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.jsonl", json_line("fine") + "{\"text\": 5}\nnot json\n" + json_line("also fine"));
  write_file_atomic(folder / "empty.txt", "\n");
  PrepareOptions options;
  options.output = folder / "out";
  auto error_for = [&](const std::string& input) {
    options.documents.inputs = {folder / input};
    return expect_error([&] { prepare_data(*t, options); });
  };
  CHECK(error_for("missing.txt").code() == ExitCode::data);
  CHECK(mentions(error_for("missing.txt"), "missing.txt"));
  CHECK(error_for("a.zip").code() == ExitCode::usage);
  CHECK(mentions(error_for("a.jsonl"), "a.jsonl:2 has no string in a field \"text\""));
  options.documents.separator = "";
  CHECK(error_for("empty.txt").code() == ExitCode::data);
  CHECK(std::filesystem::is_empty(folder / "out"));

  options.skip_bad_lines = true;
  options.documents.inputs = {folder / "a.jsonl"};
  CHECK(prepare_data(*t, options).manifest.bad_lines == 2);
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
  PrepareOptions options;
  options.documents.inputs = {folder / "a.txt"};
  options.output = folder / "out";
  options.val_fraction = 0.5;
  prepare_data(*t, options);
  std::filesystem::remove(folder / "out/train_000000.bin");
  options.val_fraction = 0;
  CHECK(mentions(expect_error([&] { prepare_data(*t, options); }), "out/val_000000.bin exists"));
  options.overwrite = true;
  prepare_data(*t, options);
  CHECK_FALSE(std::filesystem::exists(folder / "out/val_000000.bin"));
}

TEST_CASE("a producer that fails on the way leaves no shards, whatever it gave before") {
  const Tokenizer* t = tokenizer();
  if (!t) return;
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 100; i++) lines += json_line("document " + std::to_string(i));
  write_file_atomic(folder / "piped.jsonl", lines + R"({"parquet_to_jsonl_failed": "b.parquet: broken"})" + "\n");
  PrepareOptions options;
  options.documents.inputs = {folder / "piped.jsonl"};
  options.output = folder / "out";
  options.shard_tokens = 50;
  options.skip_bad_lines = true;
  const Error error = expect_error([&] { prepare_data(*t, options); });
  CHECK(error.code() == ExitCode::data);
  CHECK(mentions(error, "b.parquet: broken"));
  CHECK(std::filesystem::is_empty(folder / "out"));
}
