#include "tools/prepare_data/bucket_files.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/rng.h"
#include "engine/text/tokenizer.h"
#include "tests/expect_error.h"
#include "tests/open_files.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

struct Document {
  uint64_t key;
  bool validation;
  std::vector<uint16_t> tokens;
  bool part = false;
  bool operator==(const Document&) const = default;
};

// The i-th of them: up to 100 tokens behind end-of-text.
Document document(uint64_t i) {
  Document made{Rng(7).bits(i), i % 5 == 0, {Tokenizer::kEndOfText}};
  for (uint64_t t = 0; t < Rng(8).bits(i) % 100; ++t)
    made.tokens.push_back(static_cast<uint16_t>(Rng(i).bits(t) % 50000));
  return made;
}

void append(BucketFiles& buckets, const Document& document) {
  buckets.append(document.key, document.validation, document.tokens, document.part);
}

struct Loaded {
  std::vector<Document> documents;
  int64_t duplicates = 0, largest_slice = 0;
  size_t slices = 0;
};

Loaded load_all(const BucketFiles& buckets) {
  Loaded all;
  for (const BucketFiles::Slice& slice : buckets.slices()) {
    const BucketFiles::Records loaded = buckets.load(slice).value();
    for (const auto& record : loaded.records)
      all.documents.push_back(
          {record.key, record.validation, {record.tokens.begin(), record.tokens.end()}, record.part});
    all.duplicates += loaded.duplicates;
    all.largest_slice = std::max(all.largest_slice, static_cast<int64_t>(2 * loaded.memory.size()));
    all.slices++;
  }
  return all;
}

} // namespace

TEST_CASE("documents come out in the order of their keys, however many buckets and slices there are") {
  std::vector<Document> expected;
  for (uint64_t i = 0; i < 1000; ++i) expected.push_back(document(i));
  std::ranges::sort(expected, {}, &Document::key);
  for (const size_t count : {1, 3, 16}) {
    for (const int64_t most_bytes : {2000, 1 << 20}) {
      CAPTURE(count);
      CAPTURE(most_bytes);
      const TemporaryFolder folder;
      BucketFiles buckets({.folder = folder.path(), .count = count, .most_bytes = most_bytes}, {});
      for (uint64_t i = 0; i < 1000; ++i) append(buckets, document(i));
      buckets.sync();
      const Loaded loaded = load_all(buckets);
      CHECK((loaded.documents == expected));
      CHECK(loaded.slices >= count);
      if (most_bytes == 2000) CHECK(loaded.largest_slice < 6000); // chance makes some larger than others
    }
  }
}

TEST_CASE("without keys the order stays, in buckets of bounded size") {
  const TemporaryFolder folder;
  BucketFiles buckets({.folder = folder.path(), .keep_order = true, .most_bytes = 5000}, {});
  std::vector<Document> expected;
  for (uint64_t i = 0; i < 500; ++i) {
    expected.push_back(document(i));
    append(buckets, expected.back());
  }
  buckets.sync();
  const Loaded loaded = load_all(buckets);
  CHECK((loaded.documents == expected));
  CHECK(loaded.slices > 5);
  CHECK(loaded.largest_slice < 5200);
}

TEST_CASE("of equal documents the first stays; an equal key alone does not make them equal") {
  const TemporaryFolder folder;
  BucketFiles buckets({.folder = folder.path(), .count = 2, .deduplicate = true, .most_bytes = 1 << 20}, {});
  const Document one{5, true, {Tokenizer::kEndOfText, 1}}, two{5, false, {Tokenizer::kEndOfText, 2}},
      again{5, false, {Tokenizer::kEndOfText, 1}};
  for (const Document& each : {one, two, again}) append(buckets, each);
  buckets.sync();
  const Loaded loaded = load_all(buckets);
  CHECK((loaded.documents == std::vector{one, two}));
  CHECK(loaded.duplicates == 1);
}

TEST_CASE("parts of documents are no duplicates, of each other or of a whole document") {
  const TemporaryFolder folder;
  BucketFiles buckets({.folder = folder.path(), .count = 2, .deduplicate = true, .most_bytes = 1 << 20}, {});
  const Document part{5, false, {Tokenizer::kEndOfText, 1}, true}, whole{5, false, {Tokenizer::kEndOfText, 1}};
  for (const Document& each : {part, whole, part, whole}) append(buckets, each);
  buckets.sync();
  const Loaded loaded = load_all(buckets);
  CHECK((loaded.documents == std::vector{part, whole, part}));
  CHECK(loaded.duplicates == 1);
}

TEST_CASE("buckets in order are as many as need be, one file open at a time, and can be gone on with") {
  const TemporaryFolder folder;
  const auto before = open_files();
  const BucketOptions options{.folder = folder.path(), .keep_order = true, .most_bytes = 1000};
  std::vector<Document> expected;
  for (uint64_t i = 0; i < 1000; ++i) expected.push_back(document(i));
  std::vector<int64_t> lengths;
  {
    BucketFiles buckets(options, {});
    for (uint64_t i = 0; i < 600; ++i) append(buckets, expected[i]);
    buckets.sync();
    lengths = buckets.bytes();
    CHECK(lengths.size() > 50);
    CHECK(open_files() == before + 1);
    for (uint64_t i = 999; i > 700; --i) append(buckets, expected[i]); // killed: more buckets, of which nobody knows
  }
  BucketFiles buckets(options, lengths);
  CHECK(buckets.bytes() == lengths);
  CHECK(open_files() == before + 1);
  for (uint64_t i = 600; i < 1000; ++i) append(buckets, expected[i]);
  buckets.sync();
  CHECK(open_files() == before + 1);
  CHECK((load_all(buckets).documents == expected));
  const BucketFiles again(options, buckets.bytes()); // as the second pass opens them
  CHECK((load_all(again).documents == expected));
}

TEST_CASE("what was appended behind the known lengths is cut off") {
  const TemporaryFolder folder;
  const BucketOptions options{.folder = folder.path(), .count = 4, .most_bytes = 1 << 20};
  std::vector<int64_t> lengths;
  {
    BucketFiles buckets(options, {});
    for (uint64_t i = 0; i < 300; ++i) append(buckets, document(i));
    buckets.sync();
    lengths = buckets.bytes();
    for (uint64_t i = 300; i < 400; ++i) append(buckets, document(i)); // some of it reaches the disk
  }
  BucketFiles buckets(options, lengths);
  CHECK(buckets.bytes() == lengths);
  for (uint64_t i = 300; i < 500; ++i) append(buckets, document(i));
  buckets.sync();
  std::vector<Document> expected;
  for (uint64_t i = 0; i < 500; ++i) expected.push_back(document(i));
  std::ranges::sort(expected, {}, &Document::key);
  CHECK((load_all(buckets).documents == expected));
}

TEST_CASE("a bucket that lost its end is not taken for a whole one") {
  const TemporaryFolder folder;
  const BucketOptions options{.folder = folder.path(), .most_bytes = 1 << 20};
  BucketFiles buckets(options, {});
  for (uint64_t i = 0; i < 10; ++i) append(buckets, document(i));
  buckets.sync();
  std::vector<int64_t> lengths = buckets.bytes();
  lengths[0] += 10;
  CHECK(mentions(expect_error([&] { BucketFiles(options, lengths); }), "bucket_0 is damaged"));
  lengths[0] -= 11;
  const BucketFiles shorter(options, lengths);
  CHECK(mentions(expect_error([&] { load_all(shorter); }), "bucket_0 is damaged"));
}
