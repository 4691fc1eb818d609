#include "engine/data/shard.h"

#include <doctest/doctest.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "engine/base/log.h"
#include "engine/base/rng.h"
#include "engine/system/files.h"
#include "tests/expect_error.h"
#include "tests/file_size_limit.h"
#include "tests/temporary_folder.h"
#include "tools/common/verify_data.h"
#include "tools/prepare_data/write_shard.h"

using namespace gpt2;

namespace {

std::vector<uint16_t> random_tokens(size_t count) {
  const Rng rng(5);
  std::vector<uint16_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<uint16_t>(rng.bits(i) % 50257);
  return tokens;
}

std::vector<uint16_t> read_all(const TokenSource& shard) {
  std::vector<uint16_t> tokens(static_cast<size_t>(shard.tokens()));
  shard.read(0, tokens);
  return tokens;
}

void flip_byte(const std::string& path, int64_t offset) {
  std::string bytes = read_text_file(path);
  bytes.at(static_cast<size_t>(offset)) ^= 1;
  write_file_atomic(path, bytes);
}

// Every bad shard is Error(data), says which file, and hints at a way out.
Error expect_bad_shard(const std::string& path) {
  const Error error = expect_error([&] { open_shard(path); });
  CHECK(error.code() == ExitCode::data);
  CHECK(mentions(error, path));
  CHECK(!error.hint().empty());
  return error;
}

// A one-dimensional HDF5 dataset made by hand, for files that are nearly a shard.
void write_foreign_hdf5(const std::string& path, const char* dataset, hid_t type, hsize_t chunk, uint64_t version) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t count = 1000;
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  const hid_t plan = H5Pcreate(H5P_DATASET_CREATE);
  if (chunk > 0) H5Pset_chunk(plan, 1, &chunk);
  const hid_t data = H5Dcreate2(file, dataset, type, space, H5P_DEFAULT, plan, H5P_DEFAULT);
  std::vector<uint64_t> values(count);
  std::iota(values.begin(), values.end(), uint64_t{3});
  H5Dwrite(data, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  const hid_t scalar = H5Screate(H5S_SCALAR);
  const hid_t attribute = H5Acreate2(file, "version", H5T_STD_U64LE, scalar, H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite(attribute, H5T_NATIVE_UINT64, &version);
  H5Aclose(attribute), H5Sclose(scalar), H5Dclose(data), H5Pclose(plan), H5Sclose(space), H5Fclose(file);
}

std::string read_string_attribute(const std::string& path, const char* name) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t attribute = H5Aopen(file, name, H5P_DEFAULT);
  const hid_t type = H5Aget_type(attribute);
  char* text = nullptr;
  H5Aread(attribute, type, &text);
  const std::string value = text;
  H5free_memory(text);
  H5Tclose(type), H5Aclose(attribute), H5Fclose(file);
  return value;
}

} // namespace

TEST_CASE("both formats give back their tokens, whole and in part") {
  const TemporaryFolder folder;
  const std::vector<uint16_t> tokens = random_tokens(1'300'000); // three blocks, the last one short
  write_bin_shard(folder / "a.bin", tokens);
  write_hdf5_shard(folder / "a.h5", tokens, {"a test", "gpt2"});
  for (const char* name : {"a.bin", "a.h5"}) {
    const auto shard = open_shard(folder / name);
    CHECK(shard->path() == folder / name);
    CHECK(shard->tokens() == 1'300'000);
    CHECK(read_all(*shard) == tokens);
    std::vector<uint16_t> part(777);
    shard->read(524'000, part);
    CHECK(std::equal(part.begin(), part.end(), tokens.begin() + 524'000));
  }
}

TEST_CASE("a .bin shard is llm.c's, byte for byte") {
  const TemporaryFolder folder;
  write_bin_shard(folder / "a.bin", std::vector<uint16_t>{50256, 1, 2});
  const std::string bytes = read_text_file(folder / "a.bin");
  REQUIRE(bytes.size() == 1024 + 6);
  int32_t header[4];
  std::memcpy(header, bytes.data(), sizeof header);
  CHECK(header[0] == 20240520);
  CHECK(header[1] == 1);
  CHECK(header[2] == 3);
  CHECK(bytes.substr(12, 1012) == std::string(1012, '\0'));
  CHECK(bytes.substr(1024) == std::string("\x50\xC4\x01\0\x02\0", 6));
}

TEST_CASE("the content decides, not the name") {
  const TemporaryFolder folder;
  const std::vector<uint16_t> tokens = {1, 2, 3};
  write_bin_shard(folder / "a.h5", tokens);
  write_hdf5_shard(folder / "b.bin", tokens, {});
  CHECK(read_all(*open_shard(folder / "a.h5")) == tokens);
  CHECK(read_all(*open_shard(folder / "b.bin")) == tokens);
}

TEST_CASE("an HDF5 shard tells where its text came from") {
  const TemporaryFolder folder;
  write_hdf5_shard(folder / "a.h5", random_tokens(10), {"FineWeb-Edu, sample 10BT", "gpt2"});
  CHECK(read_string_attribute(folder / "a.h5", "source") == "FineWeb-Edu, sample 10BT");
  CHECK(read_string_attribute(folder / "a.h5", "tokenizer") == "gpt2");
}

TEST_CASE("missing, empty and unreadable files") {
  const TemporaryFolder folder;
  CHECK(mentions(expect_bad_shard(folder / "missing.bin"), "No such file"));

  write_file_atomic(folder / "empty.bin", "");
  CHECK(mentions(expect_bad_shard(folder / "empty.bin"), "is empty"));

  const Error is_folder = expect_bad_shard(folder.path());
  CHECK(mentions(is_folder, "is a folder"));
  CHECK(is_folder.hint().find(folder.path() + "/*.bin") != std::string::npos);

  // Text where shards belong: the command that makes shards of it.
  std::ofstream(folder / "play.txt") << "To be, or not to be, that is the question.\n";
  CHECK(contains(expect_bad_shard(folder / "play.txt").hint(), "bin/prepare_data " + folder / "play.txt"));
  CHECK(contains(expect_bad_shard(folder / "play.txt").hint(), "then --dataset play"));
  const TemporaryFolder texts, shards;
  std::ofstream(texts / "a.parquet") << "PAR1 and more";
  CHECK(contains(expect_bad_shard(texts.path() + "/").hint(), "bin/prepare_data '" + texts / "*.parquet" + "'"));
  write_bin_shard(shards / "train_000000.bin", std::vector<uint16_t>{1, 2, 3});
  CHECK(contains(expect_bad_shard(shards.path()).hint(), "'" + shards / "train_*.bin" + "'"));

  ::mkfifo((folder / "pipe").c_str(), 0600); // must be refused, not waited for
  CHECK(expect_error([&] { open_shard(folder / "pipe"); }).code() == ExitCode::data);

  if (::geteuid() == 0) {
    MESSAGE("skipped: root may read everything");
    return;
  }
  write_bin_shard(folder / "secret.bin", random_tokens(10));
  ::chmod((folder / "secret.bin").c_str(), 0);
  CHECK(mentions(expect_bad_shard(folder / "secret.bin"), "Permission denied"));
}

TEST_CASE("foreign files") {
  const TemporaryFolder folder;
  for (const char* text : {"x", "not tokens", "a text file of some length, longer than any header's first words"}) {
    write_file_atomic(folder / "notes.txt", text);
    CHECK(mentions(expect_bad_shard(folder / "notes.txt"), "not a token shard"));
  }
  const std::string magic = std::string("\x08\xD7\x34\x01", 4); // 20240136: near, but not it
  write_file_atomic(folder / "near.bin", magic + std::string(2000, '\0'));
  CHECK(mentions(expect_bad_shard(folder / "near.bin"), "20240520"));
}

TEST_CASE("truncated and damaged .bin shards say what was expected and found") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  const std::vector<uint16_t> tokens = random_tokens(5000);

  write_bin_shard(path, tokens);
  std::filesystem::resize_file(path, 9000);
  const Error truncated = expect_bad_shard(path);
  CHECK(mentions(truncated, "truncated"));
  CHECK(mentions(truncated, "11024")); // 1024 + 2 * 5000
  CHECK(mentions(truncated, "9000"));

  std::filesystem::resize_file(path, 500);
  CHECK(mentions(expect_bad_shard(path), "truncated"));

  write_bin_shard(path, tokens);
  std::filesystem::resize_file(path, 12000);
  CHECK(mentions(expect_bad_shard(path), "trailing"));

  write_bin_shard(path, tokens);
  flip_byte(path, 4); // version 0
  CHECK(mentions(expect_bad_shard(path), "version 0"));

  write_bin_shard(path, {});
  CHECK(mentions(expect_bad_shard(path), "holds no tokens"));
}

TEST_CASE("truncated and foreign HDF5 files") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.h5";
  write_hdf5_shard(path, random_tokens(5000), {});
  const auto whole = std::filesystem::file_size(path);
  for (const auto size : {whole - 1, whole / 2, uintmax_t{100}, uintmax_t{8}}) {
    write_hdf5_shard(path, random_tokens(5000), {});
    std::filesystem::resize_file(path, size);
    CHECK(mentions(expect_bad_shard(path), "truncated"));
  }
  write_foreign_hdf5(path, "images", H5T_STD_U16LE, 0, 1);
  CHECK(mentions(expect_bad_shard(path), "without a dataset \"tokens\""));
  write_foreign_hdf5(path, "tokens", H5T_STD_U32LE, 0, 1);
  CHECK(mentions(expect_bad_shard(path), "not a 1-D array of uint16"));
  write_foreign_hdf5(path, "tokens", H5T_STD_U16LE, 0, 2);
  CHECK(mentions(expect_bad_shard(path), "version 2"));
  write_foreign_hdf5(path, "tokens", H5T_STD_U16LE, 0, 1);
  CHECK(open_shard(path)->tokens() == 1000); // made elsewhere, without hashes: good enough to train on
}

TEST_CASE("a chunked shard gives the same tokens as a contiguous one, across the ends of chunks") {
  const TemporaryFolder folder;
  write_foreign_hdf5(folder / "contiguous.h5", "tokens", H5T_STD_U16LE, 0, 1);
  const std::vector<uint16_t> expected = read_all(*open_shard(folder / "contiguous.h5"));
  for (const hsize_t chunk : {1, 7, 100, 999, 1000}) {
    CAPTURE(chunk);
    write_foreign_hdf5(folder / "chunked.h5", "tokens", H5T_STD_U16LE, chunk, 1);
    const auto shard = open_shard(folder / "chunked.h5");
    CHECK(read_all(*shard) == expected);
    std::vector<uint16_t> some(20);
    shard->read(95, some);
    CHECK(std::equal(some.begin(), some.end(), expected.begin() + 95));
    CHECK(expect_error([&] { shard->read(990, some); }).code() == ExitCode::data); // beyond the last token
  }
}

// GPT2_H5PY_FILES: a folder of files that test_hdf5_h5py.py has written.
TEST_CASE("shards of h5py") {
  const char* const files = std::getenv("GPT2_H5PY_FILES");
  if (!files) return;
  for (const auto& entry : std::filesystem::directory_iterator(files)) {
    CAPTURE(entry.path().string());
    const std::vector<uint16_t> tokens = read_all(*open_shard(entry.path().string()));
    CHECK(tokens.size() == 1000);
    CHECK(tokens.back() == 999);
  }
}

TEST_CASE("a changed byte around the tokens is found by the seal, before HDF5 sees the file") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.h5";
  const std::vector<uint16_t> tokens = random_tokens(5000);
  write_hdf5_shard(path, tokens, {"a test", "gpt2"});
  const std::string bytes = read_text_file(path);
  const auto data = static_cast<int64_t>(bytes.find(std::string(reinterpret_cast<const char*>(tokens.data()), 64)));
  const int64_t size = static_cast<int64_t>(bytes.size()), seal = size - 40;
  int found = 0;
  for (int64_t at = 8; at < size; at += at < seal - 40 ? 41 : 3) {                   // behind HDF5's signature
    if (at >= data && at < data + 2 * static_cast<int64_t>(tokens.size())) continue; // these have hashes of their own
    flip_byte(path, at);
    const Error damaged = expect_bad_shard(path);
    CHECK_MESSAGE(mentions(damaged, at < seal || at >= seal + 8 ? "the hash in its seal" : "its seal is missing"), at);
    flip_byte(path, at);
    ++found;
  }
  CHECK(found > 50);
  CHECK(read_all(*open_shard(path)) == tokens);
}

TEST_CASE("HDF5's own error printing comes back after we silence it") {
  const TemporaryFolder folder;
  H5E_auto2_t before = nullptr, after = nullptr;
  void* client = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &before, &client);
  write_file_atomic(folder / "bad.h5", std::string("\x89HDF\r\n\x1a\n", 8) + std::string(100, 'x'));
  expect_bad_shard(folder / "bad.h5");
  H5Eget_auto2(H5E_DEFAULT, &after, &client);
  CHECK((before != nullptr));
  CHECK((before == after));
}

TEST_CASE("a damaged block is found by its hash") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.h5";
  const std::vector<uint16_t> tokens = random_tokens(1'300'000);
  write_hdf5_shard(path, tokens, {});
  CHECK_NOTHROW(verify_hdf5_shard(path));

  const std::string bytes = read_text_file(path);
  const std::string first(reinterpret_cast<const char*>(tokens.data()), 64);
  const auto data = static_cast<int64_t>(bytes.find(first));
  flip_byte(path, data + 2 * 600'000); // in the second MiB
  const Error damaged = expect_error([&] { verify_hdf5_shard(path); });
  CHECK(damaged.code() == ExitCode::data);
  CHECK(mentions(damaged, path));
  CHECK(mentions(damaged, "block 1 (tokens 524288 to 1048575)"));

  flip_byte(path, data + 2 * 600'000);
  CHECK_NOTHROW(verify_hdf5_shard(path));
  flip_byte(path, data + 2 * 1'299'999); // the very last token
  CHECK(mentions(expect_error([&] { verify_hdf5_shard(path); }), "block 2"));
}

TEST_CASE("no token of a damaged block is given out, and those of the others are") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.h5";
  const std::vector<uint16_t> tokens = random_tokens(1'300'000);
  write_hdf5_shard(path, tokens, {});
  const std::string bytes = read_text_file(path);
  const std::string first(reinterpret_cast<const char*>(tokens.data()), 64);
  flip_byte(path, static_cast<int64_t>(bytes.find(first)) + 2 * 600'000); // in the second MiB

  const auto shard = open_shard(path);
  std::vector<uint16_t> out(1000);
  CHECK_NOTHROW(shard->read(0, out));
  CHECK_NOTHROW(shard->read(1'299'000, out));
  for (const int64_t position : {524'288, 524'000, 1'048'000}) { // at the front, and over both ends
    const Error damaged = expect_error([&] { shard->read(position, out); });
    CHECK(damaged.code() == ExitCode::data);
    CHECK(mentions(damaged, path));
    CHECK(mentions(damaged, "block 1 (tokens 524288 to 1048575)"));
  }
}

TEST_CASE("a shard without hashes cannot be verified") {
  const TemporaryFolder folder;
  write_foreign_hdf5(folder / "a.h5", "tokens", H5T_STD_U16LE, 0, 1);
  write_bin_shard(folder / "a.bin", random_tokens(10));
  for (const char* name : {"a.h5", "a.bin"}) {
    const Error error = expect_error([&] { verify_hdf5_shard(folder / name); });
    CHECK(error.code() == ExitCode::data);
    CHECK(mentions(error, "block_hashes"));
  }
}

TEST_CASE("a file that shrinks after opening is an error, not a crash") {
  const TemporaryFolder folder;
  for (const char* name : {"a.bin", "a.h5"}) {
    const std::string path = folder / name;
    if (std::string(name) == "a.bin")
      write_bin_shard(path, random_tokens(50000));
    else
      write_hdf5_shard(path, random_tokens(50000), {});
    const auto shard = open_shard(path);
    std::vector<uint16_t> out(1000);
    CHECK_NOTHROW(shard->read(0, out)); // the hash of an HDF5 shard's block has been compared now
    std::filesystem::resize_file(path, 20000);
    CHECK_NOTHROW(shard->read(0, out));
    const Error error = expect_error([&] { shard->read(40000, out); });
    CHECK(error.code() == ExitCode::data);
    CHECK(mentions(error, path));
  }
}

TEST_CASE("a shard that cannot be written is Error(disk) and leaves the old one") {
  const TemporaryFolder folder;
  const std::vector<uint16_t> old_tokens = {1, 2, 3}, tokens = random_tokens(200000);
  write_bin_shard(folder / "a.bin", old_tokens);
  write_hdf5_shard(folder / "a.h5", old_tokens, {});
  {
    const FileSizeLimit full(100000);
    CHECK(expect_error([&] { write_bin_shard(folder / "a.bin", tokens); }).code() == ExitCode::disk);
    const Error error = expect_error([&] { write_hdf5_shard(folder / "a.h5", tokens, {}); });
    CHECK(error.code() == ExitCode::disk);
    CHECK(mentions(error, folder / "a.h5"));
  }
  CHECK(read_all(*open_shard(folder / "a.bin")) == old_tokens);
  CHECK(read_all(*open_shard(folder / "a.h5")) == old_tokens);
  CHECK(expand_globs(folder / "*").size() == 2); // no temporary file is left
  CHECK(expect_error([&] { write_hdf5_shard(folder / "none/a.h5", tokens, {}); }).code() == ExitCode::disk);
}

TEST_CASE("globs") {
  const TemporaryFolder folder;
  for (const char* name : {"train_2.bin", "train_1.bin", "val_1.bin", "odd[1].bin"})
    write_file_atomic(folder / name, "x");
  using Paths = std::vector<std::string>;
  CHECK(expand_globs(folder / "train_*.bin") == Paths{folder / "train_1.bin", folder / "train_2.bin"});
  CHECK(expand_globs(folder / "val_1.bin," + folder.path() + "/train_?.bin") ==
        Paths{folder / "train_1.bin", folder / "train_2.bin", folder / "val_1.bin"});
  CHECK(expand_globs(folder / "val_*.bin," + folder.path() + "/val_1.bin").size() == 1);
  CHECK(expand_globs(folder / "odd[1].bin") == Paths{folder / "odd[1].bin"});

  const Error nothing = expect_error([&] { expand_globs(folder / "train_*.bin," + folder.path() + "/test_*.bin"); });
  CHECK(nothing.code() == ExitCode::data);
  CHECK(mentions(nothing, folder / "test_*.bin"));
  CHECK(expect_error([] { expand_globs(""); }).code() == ExitCode::data);
}

TEST_CASE("memory shards") {
  const auto shard = memory_shard("the built-in sample", {1, 2, 3, 4});
  CHECK(shard->tokens() == 4);
  CHECK(shard->path() == "the built-in sample");
  CHECK(read_all(*shard) == std::vector<uint16_t>{1, 2, 3, 4});
  std::vector<uint16_t> out(3);
  CHECK(mentions(expect_error([&] { shard->read(2, out); }), "the built-in sample"));
}

TEST_CASE("many threads may read one shard") {
  const TemporaryFolder folder;
  const std::vector<uint16_t> tokens = random_tokens(100000);
  write_bin_shard(folder / "a.bin", tokens);
  const auto shard = open_shard(folder / "a.bin");
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<uint16_t> out(1000);
      for (size_t i = 0; i < 500; ++i) {
        const size_t position = Rng(thread).bits(i) % 99000;
        shard->read(static_cast<int64_t>(position), out);
        wrong[thread] += !std::equal(out.begin(), out.end(), tokens.begin() + static_cast<int64_t>(position));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
}

TEST_CASE("opening a hundred shards of 100M tokens costs nothing noticeable") {
  const TemporaryFolder folder;
  write_bin_shard(folder / "header", {});
  std::string header = read_text_file(folder / "header");
  const int32_t count = 100'000'000;
  std::memcpy(header.data() + 8, &count, sizeof count);
  for (int i = 0; i < 100; ++i) {
    const std::string path = folder / ("shard_" + std::to_string(i) + ".bin");
    File::create(path).write_at(0, std::as_bytes(std::span(header)));
    std::filesystem::resize_file(path, 1024 + 2 * static_cast<uintmax_t>(count)); // sparse: takes no disk
  }
  const auto start = std::chrono::steady_clock::now();
  int64_t tokens = 0;
  for (const std::string& path : expand_globs(folder / "shard_*.bin")) tokens += open_shard(path)->tokens();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CHECK(tokens == 100LL * count);
  CHECK(seconds.count() < 1.0); // milliseconds in fact; a loader that reads the shards would take a minute
  MESSAGE("100 shards, 10B tokens, opened in " << format_duration(seconds.count()));
}
