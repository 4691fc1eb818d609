#include "engine/data/dataset_manifest.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "engine/data/dataset_folder.h"
#include "engine/system/files.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tools/common/verify_data.h"
#include "tools/prepare_data/journal.h"
#include "tools/prepare_data/shard_series.h"
#include "tools/prepare_data/write_shard.h"

using namespace gpt2;

namespace {

std::vector<uint16_t> tokens(size_t count, uint16_t first) {
  std::vector<uint16_t> made(count);
  for (size_t i = 0; i < count; ++i) made[i] = static_cast<uint16_t>((first + i) % 50257);
  return made;
}

// Two training shards of 5,000 tokens and one of validation in `folder`, with their dataset.json.
DatasetManifest make_dataset(const std::string& folder) {
  make_folders(folder);
  DatasetManifest manifest;
  manifest.name = "small";
  manifest.tokenizer_hash = "0123";
  manifest.vocabulary = 50257;
  manifest.options = R"({"seed":1})";
  manifest.sources = {{.path = "a \"b\".txt", .bytes = 9, .documents = 2, .text_bytes = 8}};
  manifest.documents = 2;
  manifest.train_tokens = 10000;
  manifest.val_tokens = 5000;
  for (const auto& [name, first] : {std::pair{"train_000000.bin", 1}, {"train_000001.bin", 2}, {"val_000000.bin", 3}}) {
    const std::string path = folder + "/" + name;
    write_bin_shard(path, tokens(5000, static_cast<uint16_t>(first)));
    manifest.shards.push_back(describe_shard(path, 5000));
  }
  write_file_atomic(manifest_of_dataset(folder), to_text(manifest));
  return manifest;
}

void check(const std::string& pattern, int vocabulary = 50257) {
  std::vector<std::unique_ptr<TokenSource>> shards;
  for (const std::string& path : expand_globs(pattern)) shards.push_back(open_shard(path));
  check_shards(shards, vocabulary);
}

} // namespace

TEST_CASE("dataset.json reads back to what was written") {
  const TemporaryFolder folder;
  const DatasetManifest manifest = make_dataset(folder / "set");
  CHECK(read_dataset_manifest(folder / "set") == manifest);
  CHECK(verify_dataset(folder / "set") == manifest);
  CHECK_FALSE(read_dataset_manifest(folder.path()).has_value());
  CHECK(expect_error([&] { verify_dataset(folder.path()); }).code() == ExitCode::data);
}

TEST_CASE("a damaged dataset.json is told, never believed") {
  const TemporaryFolder folder;
  make_dataset(folder / "set");
  const std::string path = manifest_of_dataset(folder / "set"), whole = read_text_file(path);
  for (const std::string& text :
       {std::string(), std::string("[]"), whole.substr(0, whole.size() / 2), std::string("{\"format\": 7}"),
        std::string(R"({"format": "GPT-2 token shards", "version": 2})"),
        std::string(R"({"format": "GPT-2 token shards", "version": 1, "name": 5})")}) {
    CAPTURE(text);
    CHECK(expect_error([&] { parse_dataset_manifest(text, "dataset.json"); }).code() == ExitCode::data);
  }
  for (const std::string name : {"../somewhere_x", "..", "", "val_000000.bin/..", "val_00000x.bin", "victim.txt"}) {
    std::string elsewhere = whole;
    elsewhere.replace(elsewhere.find("val_000000.bin"), 14, name);
    const Error error = expect_error([&] { parse_dataset_manifest(elsewhere, "dataset.json"); });
    CHECK(error.code() == ExitCode::data);
    CHECK(mentions(error, "a shard is named \"" + name + "\""));
  }
}

TEST_CASE("shards are compared with dataset.json at little cost") {
  const TemporaryFolder folder;
  make_dataset(folder / "set");
  const std::string train = folder / "set/train_*.bin", first = folder / "set/train_000000.bin";
  check(train);
  check(first); // a part of them will do
  CHECK(mentions(expect_error([&] { check(train, 1000); }), "a vocabulary of 50257 tokens, the model has 1000"));
  write_bin_shard(first, tokens(5000, 2)); // a copy of the second
  CHECK(mentions(expect_error([&] { check(train); }), "is not the shard that dataset.json lists"));
  write_bin_shard(first, tokens(4999, 1));
  CHECK(mentions(expect_error([&] { check(train); }), "has 11022 bytes, dataset.json says 11024"));
  std::filesystem::remove(first);
  CHECK(mentions(expect_error([&] { check(train); }), "train_000000.bin is missing"));
  write_bin_shard(first, tokens(5000, 1));
  write_bin_shard(folder / "set/train_000002.bin", tokens(5000, 1));
  CHECK(mentions(expect_error([&] { check(train); }), "train_000002.bin does not belong to the dataset"));

  std::filesystem::remove(manifest_of_dataset(folder / "set"));
  check(train); // nothing to compare with
  make_folders(prepare_folder(folder / "set"));
  write_journal(
      folder / "set",
      {.order = "{}", .position = {}, .sources = {}, .faults = {}, .bucket_bytes = {}, .train = {}, .val = {}});
  CHECK(mentions(expect_error([&] { check(train); }), "is not finished"));
}

TEST_CASE("the full check reads every byte") {
  const TemporaryFolder folder;
  make_dataset(folder / "set");
  std::vector<uint16_t> changed = tokens(5000, 1);
  changed[2500] ^= 1; // behind the first 4 KiB, before the last
  write_bin_shard(folder / "set/train_000000.bin", changed);
  check(folder / "set/train_000000.bin");
  CHECK(
      mentions(expect_error([&] { verify_dataset(folder / "set"); }), "train_000000.bin is damaged: its hash differs"));
}

TEST_CASE("a data set is found by its name") {
  const TemporaryFolder folder;
  make_dataset(folder / "small");
  const DatasetPatterns found = find_dataset(folder.path(), "small");
  CHECK(found.train == folder / "small/train_*.bin");
  CHECK(found.val == folder / "small/val_*.bin");
  std::filesystem::remove(folder / "small/val_000000.bin");
  CHECK(find_dataset(folder.path(), "small").val.empty());
  const Error missing = expect_error([&] { find_dataset(folder.path(), "big"); });
  CHECK(missing.code() == ExitCode::data);
  CHECK(mentions(missing, "there is no dataset big"));
  CHECK(contains(missing.hint(), "bin/prepare_data FILE... --dataset big"));
  CHECK(contains(missing.hint(), ": small"));
  write_file_atomic(folder / "small/train_000000.h5", "");
  CHECK(mentions(expect_error([&] { find_dataset(folder.path(), "small"); }), "both formats"));
}

TEST_CASE("a journal reads back to what was written, and says how an order differs") {
  const TemporaryFolder folder;
  make_folders(prepare_folder(folder.path()));
  CHECK_FALSE(read_journal(folder.path()).has_value());
  PrepareJournal journal;
  journal.order = R"({"seed":1,"inputs":[{"path":"a"},{"path":"b"}]})";
  journal.overwrite = true;
  journal.stage = PrepareStage::shard;
  journal.position = {.input = 2,
                      .offset = 5,
                      .pending = 3,
                      .line = 7,
                      .documents = 11,
                      .chunks = 13,
                      .first = false,
                      .at_line_start = false};
  journal.sources = {{.path = "a", .bytes = 1, .documents = 2, .text_bytes = 3}};
  journal.faults = {{.bytes = 6, .invalid_utf8 = 5, .nul = 4, .utf8_marks = 3, .utf16_marks = 2, .crlf = 1}};
  journal.bad_lines = 1;
  journal.bucket_bytes = {int64_t{1} << 40, 0};
  journal.slice_bytes = 5;
  journal.val_documents = 12, journal.train_limit = 14;
  journal.slices = 6, journal.records = 7, journal.documents = 8, journal.duplicates = 9;
  journal.train = {{{"train_000000.bin", 1, 2, "abc", "def"}}, 10};
  journal.val.open_tokens = 11;
  write_journal(folder.path(), journal);
  CHECK(is_being_prepared(folder.path()));
  CHECK(read_journal(folder.path()) == journal);

  CHECK(difference(journal.order, journal.order).empty());
  CHECK(difference(journal.order, R"({"seed":2,"inputs":[]})") == "seed was 1, is 2");
  CHECK(difference(journal.order, R"({"seed":1,"inputs":[{"path":"a"}]})") == "b is not among the inputs any more");
  CHECK(difference(journal.order, R"({"seed":1,"inputs":[{"path":"a","bytes":1},{"path":"b"}]})") ==
        "a has changed since");
  CHECK(difference(journal.order, R"({"seed":1,"inputs":[{"path":"a"},{"path":"b"},{"path":"c"}]})") ==
        "c is new among the inputs");

  for (const char* const order :
       {"null", "{}", R"({"inputs":7})", R"({"inputs":[{}]})", R"({"inputs":[{"path":5}]})"}) {
    CAPTURE(order);
    journal.order = order;
    write_journal(folder.path(), journal);
    CHECK(expect_error([&] { read_journal(folder.path()); }).code() == ExitCode::data);
  }
  write_file_atomic(prepare_folder(folder.path()) + "/journal", "{");
  CHECK(mentions(expect_error([&] { read_journal(folder.path()); }), "journal is damaged"));
}

TEST_CASE("a series of shards goes back to where it was") {
  for (const std::string format : {"bin", "h5"}) {
    const TemporaryFolder folder;
    const ShardSeries::Options options{folder.path(), "train", format, 1000, {"text", "gpt2"}};
    const std::vector<uint16_t> all = tokens(3500, 1);
    const std::span<const uint16_t> span(all);
    ShardSeries::State known;
    {
      ShardSeries series(options, {});
      series.append(span.first(1700));
      series.sync();
      series.forget();
      known = series.state();
      CHECK(known.shards.size() == 1);
      CHECK(known.open_tokens == 700);
      series.append(tokens(1500, 9)); // fills two shards, and is taken back
      series.sync();
    }
    ShardSeries series(options, known);
    series.append(span.subspan(1700));
    series.finish();
    CHECK(series.state().tokens() == 3500);
    make_folders(folder / "out");
    series.publish(folder / "out");
    series.publish(folder / "out"); // once more, as after a kill
    std::vector<uint16_t> read;
    for (const std::string& path : existing_shards(folder / "out", "train", format)) {
      const auto shard = open_shard(path);
      std::vector<uint16_t> part(static_cast<size_t>(shard->tokens()));
      shard->read(0, part);
      read.insert(read.end(), part.begin(), part.end());
    }
    CHECK((read == all));
    CHECK(series.state().shards.back().name == "train_000003." + format);
    CHECK(series.state().shards.back() == describe_shard(folder / ("out/train_000003." + format), 500));
  }
}
