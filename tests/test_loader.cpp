#include "engine/data/loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <thread>

#include "engine/base/rng.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tools/prepare_data/write_shard.h"

using namespace gpt2;

namespace {

constexpr int kVocab = 50257;

// Every token is its own position, so that a sequence's first input tells which sequence it is.
std::vector<uint16_t> counting_tokens(int count, int first = 0) {
  std::vector<uint16_t> tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = static_cast<uint16_t>(first + i);
  return tokens;
}

// `sequences` of seq_len, in three shards with a few tokens too many each; inputs count up over all shards.
std::shared_ptr<const Dataset> counting_dataset(int sequences, int seq_len) {
  std::vector<std::unique_ptr<TokenSource>> shards;
  const int parts[] = {sequences / 3, sequences / 2, sequences - sequences / 3 - sequences / 2};
  int first = 0;
  for (const int part : parts) {
    shards.push_back(memory_shard("shard", counting_tokens(part * seq_len + 1 + (seq_len > 1), first)));
    first += part * seq_len;
  }
  return std::make_shared<Dataset>(std::move(shards), seq_len, kVocab);
}

// Which sequences a batch holds, by their first tokens; checks each row on the way.
std::vector<int> sequences_of(const HostBatch& batch) {
  std::vector<int> sequences;
  for (int row = 0; row < batch.batch_size; ++row) {
    const int32_t* inputs = &batch.inputs[static_cast<size_t>(row * batch.seq_len)];
    const int32_t* targets = &batch.targets[static_cast<size_t>(row * batch.seq_len)];
    for (int t = 0; t < batch.seq_len; ++t) {
      if (inputs[t] != inputs[0] + t || targets[t] != inputs[t] + 1) FAIL("a row is not one sequence");
    }
    sequences.push_back(inputs[0] / batch.seq_len);
  }
  return sequences;
}

std::vector<int> take(Loader& loader, int batches) {
  std::vector<int> sequences;
  for (int i = 0; i < batches; ++i) {
    const std::vector<int> batch = sequences_of(loader.next());
    sequences.insert(sequences.end(), batch.begin(), batch.end());
  }
  return sequences;
}

std::vector<int> order(const std::shared_ptr<const Dataset>& dataset, const LoaderOptions& options, int batches,
                       int64_t position = 0) {
  Loader loader(dataset, options, position);
  return take(loader, batches);
}

} // namespace

TEST_CASE("the permutation is a bijection") {
  for (uint64_t size = 1; size <= 2000; ++size) {
    const Permutation permutation(size, size * 7 + 1);
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = permutation(i);
      if (image >= size || seen[image]) FAIL("not a bijection on ", size);
      seen[image] = true;
    }
  }
  // Too large to visit whole: no collision among many samples, and all in range.
  for (const uint64_t size : {uint64_t{9'765'625}, (uint64_t{1} << 32) - 5, (uint64_t{1} << 40) + 1}) {
    const Permutation permutation(size, 3);
    std::vector<uint64_t> images;
    for (uint64_t i = 0; i < 100'000; ++i) images.push_back(permutation(i * (size / 100'000)));
    std::sort(images.begin(), images.end());
    CHECK(std::adjacent_find(images.begin(), images.end()) == images.end());
    CHECK(images.back() < size);
  }
}

TEST_CASE("the permutation looks random") {
  const uint64_t size = 10'000;
  const auto count = static_cast<double>(size);
  for (const uint64_t seed : {0, 1, 2, 1337}) {
    const Permutation permutation(size, seed);
    double displacement = 0, position_correlation = 0;
    int neighbors = 0;
    for (uint64_t i = 0; i < size; ++i) {
      const auto here = static_cast<double>(permutation(i)), index = static_cast<double>(i);
      displacement += std::fabs(here - index) / count;
      position_correlation += (here - count / 2) * (index - count / 2) / (count * count / 12);
      if (i > 0 && std::fabs(here - static_cast<double>(permutation(i - 1))) == 1.0) ++neighbors;
    }
    CHECK(displacement / count == doctest::Approx(1.0 / 3).epsilon(0.03)); // of a random permutation; sd 0.0024
    CHECK(std::fabs(position_correlation / count) < 0.05);                 // sd 0.01
    CHECK(neighbors < 20);                                                 // expected 2
  }
}

TEST_CASE("seeds give different permutations") {
  int equal = 0;
  for (uint64_t i = 0; i < 1000; ++i) equal += Permutation(1000, 1)(i) == Permutation(1000, 2)(i);
  CHECK(equal < 15); // expected 1
}

TEST_CASE("sequences are cut with stride T and never cross shards") {
  std::vector<std::unique_ptr<TokenSource>> shards;
  shards.push_back(memory_shard("a", counting_tokens(9, 100))); // two sequences of 4 + 1
  shards.push_back(memory_shard("b", counting_tokens(4, 200))); // too short for one
  shards.push_back(memory_shard("c", counting_tokens(8, 300))); // one, and three tokens unused
  shards.push_back(memory_shard("d", {}));
  const Dataset dataset(std::move(shards), 4, kVocab);
  CHECK(dataset.sequences() == 3);
  CHECK(dataset.tokens() == 21);
  CHECK(dataset.shards() == 4);
  CHECK(dataset.seq_len() == 4);
  const int32_t firsts[] = {100, 104, 300};
  for (int i = 0; i < 3; ++i) {
    int32_t inputs[4], targets[4];
    dataset.read(i, inputs, targets);
    for (int t = 0; t < 4; ++t) {
      CHECK(inputs[t] == firsts[i] + t);
      CHECK(targets[t] == firsts[i] + t + 1);
    }
  }
}

TEST_CASE("an epoch visits every sequence once, in an order of its own") {
  const auto dataset = counting_dataset(100, 8);
  const std::vector<int> samples = order(dataset, {.batch_size = 5}, 60);
  std::vector<std::vector<int>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    epochs.emplace_back(samples.begin() + epoch * 100, samples.begin() + (epoch + 1) * 100);
    const std::set<int> distinct(epochs.back().begin(), epochs.back().end());
    CHECK(distinct.size() == 100);
    CHECK(*distinct.rbegin() == 99);
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
  CHECK(!std::is_sorted(epochs[0].begin(), epochs[0].end()));
  CHECK(order(dataset, {.batch_size = 5, .seed = 1}, 20) != epochs[0]);
}

TEST_CASE("the order depends on the seed and the sample number alone") {
  const auto dataset = counting_dataset(96, 8);
  const std::vector<int> reference = order(dataset, {.batch_size = 1}, 240);
  for (const int batch_size : {2, 3, 5, 48, 120}) // 5 and 120 do not divide an epoch
    CHECK(order(dataset, {.batch_size = batch_size}, 240 / batch_size) == reference);
}

TEST_CASE("ranks slice one order") {
  const auto dataset = counting_dataset(90, 8);
  Loader whole(dataset, {.batch_size = 4});
  Loader first(dataset, {.batch_size = 2, .rank = 0, .ranks = 2}),
      second(dataset, {.batch_size = 2, .rank = 1, .ranks = 2});
  for (int step = 0; step < 50; ++step) { // 200 samples: over two epoch boundaries, inside a batch
    std::vector<int> both = take(first, 1);
    const std::vector<int> rest = take(second, 1);
    both.insert(both.end(), rest.begin(), rest.end());
    CHECK(both == take(whole, 1));
  }
}

TEST_CASE("a batch may span two epochs") {
  const auto dataset = counting_dataset(10, 8);
  const std::vector<int> singles = order(dataset, {.batch_size = 1}, 30);
  Loader loader(dataset, {.batch_size = 4});
  take(loader, 2);
  CHECK(take(loader, 1) == std::vector<int>(singles.begin() + 8, singles.begin() + 12));
  Loader large(dataset, {.batch_size = 25}); // more than two epochs in one batch
  CHECK(take(large, 1) == std::vector<int>(singles.begin(), singles.begin() + 25));
}

TEST_CASE("resuming at any position continues the same order") {
  const auto dataset = counting_dataset(30, 8);
  const std::vector<int> reference = order(dataset, {.batch_size = 1}, 100);
  Loader loader(dataset, {.batch_size = 3});
  for (int taken = 0; taken <= 25; ++taken) {
    const int64_t position = 3 * taken;
    const std::vector<int> next_of_loader = sequences_of(loader.next());
    const std::vector<int> expected(reference.begin() + position, reference.begin() + position + 24);
    CHECK(order(dataset, {.batch_size = 3}, 8, position) == expected);
    CHECK(order(dataset, {.batch_size = 4}, 6, position) == expected);           // with another batch size
    Loader resumed(dataset, {.batch_size = 2, .rank = 1, .ranks = 3}, position); // with other ranks
    CHECK(sequences_of(resumed.next()) == std::vector<int>{expected[2], expected[3]});
    CHECK(next_of_loader == std::vector<int>(expected.begin(), expected.begin() + 3));
  }
}

TEST_CASE(".bin and .h5 shards with the same tokens give identical batches") {
  const TemporaryFolder folder;
  std::vector<uint16_t> tokens(20'000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(Rng(9).bits(i) % kVocab);
  write_bin_shard(folder / "a.bin", tokens);
  write_hdf5_shard(folder / "a.h5", tokens, {"a test", "gpt2"});
  const auto load = [&](const std::string& path) {
    std::vector<std::unique_ptr<TokenSource>> shards;
    shards.push_back(open_shard(path));
    return Loader(std::make_shared<Dataset>(std::move(shards), 64, kVocab), {.batch_size = 8});
  };
  Loader bin = load(folder / "a.bin"), hdf5 = load(folder / "a.h5");
  for (int i = 0; i < 60; ++i) {
    const HostBatch a = bin.next(), b = hdf5.next();
    REQUIRE(a.inputs.size() == 8 * 64);
    CHECK(a.inputs == b.inputs);
    CHECK(a.targets == b.targets);
  }
}

TEST_CASE("a sequence with a token beyond the vocabulary is a blank, named with its file and place") {
  std::vector<uint16_t> tokens = counting_tokens(1000);
  tokens[777] = 50300;
  std::vector<std::unique_ptr<TokenSource>> shards;
  shards.push_back(memory_shard("good.bin", counting_tokens(500)));
  shards.push_back(memory_shard("bad.bin", tokens));
  const auto dataset = std::make_shared<Dataset>(std::move(shards), 10, kVocab);
  Loader loader(dataset, {.batch_size = 1});
  int bad = 0;
  for (int64_t i = 0; i < dataset->sequences(); ++i) {
    const HostBatch batch = loader.next();
    if (batch.bad.empty()) continue;
    ++bad;
    CHECK(batch.bad[0].shard == "bad.bin");
    CHECK(batch.bad[0].position == 777);
    CHECK(batch.bad[0].token == 50300);
    CHECK(batch.inputs == std::vector<int32_t>(10, 0));
    CHECK(batch.targets == std::vector<int32_t>(10, kIgnoredTarget));
  }
  CHECK(bad == 1);
  const Error error = expect_error([&] { validation_batches(*dataset, 1000, 1, 0, 1); });
  CHECK(error.code() == ExitCode::data);
  CHECK(mentions(error, "bad.bin: token 777 is 50300"));
}

TEST_CASE("a read that fails comes after all batches before it, and again at the next call") {
  struct BrokenDisk : TokenSource {
    std::string name = "broken.bin";
    int64_t tokens() const override { return 1000; }
    const std::string& path() const override { return name; }
    void read(int64_t position, std::span<uint16_t> out) const override {
      if (position >= 770) throw Error(ExitCode::data, "cannot read " + name);
      std::fill(out.begin(), out.end(), uint16_t{1});
    }
  };
  std::vector<std::unique_ptr<TokenSource>> shards;
  shards.push_back(std::make_unique<BrokenDisk>());
  const auto dataset = std::make_shared<Dataset>(std::move(shards), 10, kVocab);
  std::vector<std::unique_ptr<TokenSource>> whole;
  whole.push_back(memory_shard("whole.bin", counting_tokens(1000)));
  const std::vector<int> sequences =
      order(std::make_shared<Dataset>(std::move(whole), 10, kVocab), {.batch_size = 1, .seed = 59}, 99);
  const auto first_broken = std::ranges::find_if(sequences, [](int sequence) { return sequence >= 77; });
  REQUIRE(first_broken - sequences.begin() > 20); // more than the loader reads ahead
  Loader loader(dataset, {.batch_size = 1, .seed = 59});
  int64_t good = 0;
  const Error error = expect_error([&] {
    for (;; ++good) loader.next();
  });
  CHECK(good == first_broken - sequences.begin()); // however far the threads had read
  CHECK(error.code() == ExitCode::data);
  CHECK(mentions(expect_error([&] { loader.next(); }), "broken.bin"));
}

TEST_CASE("sequences longer than every shard") {
  std::vector<std::unique_ptr<TokenSource>> shards;
  shards.push_back(memory_shard("a.bin", counting_tokens(64)));
  shards.push_back(memory_shard("b.bin", counting_tokens(32)));
  const Error error = expect_error([&] { Dataset(std::move(shards), 64, kVocab); }); // 65 tokens are needed
  CHECK(error.code() == ExitCode::data);
  CHECK(mentions(error, "a.bin"));
  CHECK(mentions(error, "64 + 1"));
  CHECK(error.hint().find("--seq_len") != std::string::npos);
  CHECK(expect_error([] { Dataset({}, 64, kVocab); }).code() == ExitCode::data);
}

TEST_CASE("a file truncated under a running loader is Error(data)") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  write_bin_shard(path, std::vector<uint16_t>(100'000, 7));
  std::vector<std::unique_ptr<TokenSource>> shards;
  shards.push_back(open_shard(path));
  Loader loader(std::make_shared<Dataset>(std::move(shards), 100, kVocab), {.batch_size = 4});
  loader.next();
  std::filesystem::resize_file(path, 2000);
  const Error error = expect_error([&] {
    for (int i = 0; i < 100; ++i) loader.next();
  });
  CHECK(error.code() == ExitCode::data);
  CHECK(mentions(error, path));
}

TEST_CASE("a loader can be dropped at any moment") {
  const auto dataset = counting_dataset(50, 8);
  for (int i = 0; i < 200; ++i) {
    Loader loader(dataset, {.batch_size = 4});
    if (i % 3 == 0) loader.next();
  }
}

TEST_CASE("validation covers the same sequences whatever the ranks, its tail ignored") {
  const auto dataset = counting_dataset(50, 8);
  for (const int ranks : {1, 2, 3, 8}) {
    for (const int batch_size : {1, 4, 7}) {
      std::multiset<int> sequences;
      int64_t targets = 0;
      std::set<size_t> batch_counts;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<HostBatch> batches = validation_batches(*dataset, 23, batch_size, rank, ranks);
        batch_counts.insert(batches.size());
        for (const HostBatch& batch : batches) {
          CHECK(batch.view().tokens() == batch_size * 8);
          CHECK(batch.view().targets.size() == static_cast<size_t>(batch_size) * 8);
          for (int row = 0; row < batch_size; ++row) {
            const int32_t* row_targets = &batch.targets[static_cast<size_t>(row * 8)];
            const auto counted = std::count_if(row_targets, row_targets + 8, [](int t) { return t != kIgnoredTarget; });
            CHECK((counted == 0 || counted == 8));
            targets += counted;
            if (counted > 0) sequences.insert(batch.inputs[static_cast<size_t>(row * 8)] / 8);
          }
        }
      }
      CHECK(batch_counts.size() == 1); // ranks that wait for each other must do so equally often
      CHECK(targets == 23 * 8);
      CHECK(sequences.size() == 23);
      CHECK(std::set<int>(sequences.begin(), sequences.end()).size() == 23);
      CHECK(*sequences.rbegin() == 22);
    }
  }
  CHECK(validation_batches(*dataset, 1000, 10, 0, 1).size() == 5); // no more than there are
}
