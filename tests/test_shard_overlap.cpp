#include "engine/data/shard.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <numeric>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tools/prepare_data/write_shard.h"

using namespace gpt2;

namespace {

std::vector<uint16_t> counting(uint16_t first) {
  std::vector<uint16_t> tokens(10000);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

} // namespace

TEST_CASE("different shards of one length pass") {
  const TemporaryFolder folder;
  write_bin_shard(folder / "train_000000.bin", counting(0));
  write_bin_shard(folder / "train_000001.bin", counting(1));
  write_bin_shard(folder / "val_000000.bin", counting(2));
  refuse_shared_shards(expand_globs(folder / "train_*.bin"), expand_globs(folder / "val_*.bin"));

  // What differs is not always at the start.
  std::vector<uint16_t> tokens = counting(2);
  for (const size_t changed : {size_t{0}, tokens.size() / 2, tokens.size() - 1}) {
    std::vector<uint16_t> other = tokens;
    other[changed]++;
    write_bin_shard(folder / "other.bin", other);
    refuse_shared_shards({folder / "other.bin"}, {folder / "val_000000.bin"});
  }
}

TEST_CASE("a pattern that matches both is refused, and the file is named") {
  const TemporaryFolder folder;
  write_bin_shard(folder / "train_000000.bin", counting(0));
  write_bin_shard(folder / "val_000000.bin", counting(1));
  const Error error =
      expect_error([&] { refuse_shared_shards(expand_globs(folder / "*.bin"), expand_globs(folder / "val_*.bin")); });
  CHECK(error.code() == ExitCode::data);
  CHECK(std::string(error.what()) == folder / "val_000000.bin is given for training and for validation");
  CHECK(contains(error.hint(), "--val_data"));
}

TEST_CASE("links and copies under another name are the same shard") {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const std::string original = folder / "a.bin";
  write_bin_shard(original, counting(0));
  fs::create_symlink(original, folder / "soft.bin");
  fs::create_hard_link(original, folder / "hard.bin");
  fs::copy_file(original, folder / "copy.bin");
  write_hdf5_shard(folder / "copy.h5", counting(0), {"", "gpt2"});
  const std::string roundabout = folder.path() + "/../" + fs::path(folder.path()).filename().string() + "/a.bin";
  for (const std::string& other :
       {folder / "soft.bin", folder / "hard.bin", folder / "copy.bin", folder / "copy.h5", roundabout}) {
    CAPTURE(other);
    const Error error = expect_error([&] { refuse_shared_shards({original}, {other}); });
    CHECK(mentions(error, original + " is given for training and for validation, there as " + other));
  }
}

TEST_CASE("shards shorter than what is looked at") {
  const TemporaryFolder folder;
  write_bin_shard(folder / "a.bin", std::vector<uint16_t>{1, 2, 3});
  write_bin_shard(folder / "b.bin", std::vector<uint16_t>{1, 2, 4});
  refuse_shared_shards({folder / "a.bin"}, {folder / "b.bin"});
  expect_error([&] { refuse_shared_shards({folder / "a.bin"}, {folder / "a.bin"}); });
}
