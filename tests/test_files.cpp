#include "engine/system/files.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "engine/base/log.h"
#include "engine/system/content_hash.h"
#include "tests/expect_error.h"
#include "tests/file_size_limit.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

size_t files_in(const std::string& folder) {
  const auto entries = std::filesystem::directory_iterator(folder);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

} // namespace

TEST_CASE("a file is read and written by position") {
  const TemporaryFolder folder;
  File file = File::create(folder / "a");
  file.write_at(3, bytes_of("defg"));
  file.write_at(0, bytes_of("abc"));
  file.sync();
  CHECK(file.size() == 7);

  const File reader = File::open(folder / "a");
  char text[4];
  reader.read_at(2, std::as_writable_bytes(std::span(text)));
  CHECK(std::string_view(text, 4) == "cdef");
  CHECK(reader.path() == folder / "a");
}

TEST_CASE("a moved file stays open once") {
  const TemporaryFolder folder;
  File first = File::create(folder / "a");
  File second = std::move(first);
  second.write_at(0, bytes_of("x"));
  first = File::create(folder / "b");
  first.write_at(0, bytes_of("yy"));
  second = std::move(first);
  CHECK(second.size() == 2);
  CHECK(second.path() == folder / "b");
}

TEST_CASE("failures to read name the path and carry the caller's exit code") {
  const TemporaryFolder folder;
  const Error missing = expect_error([&] { File::open(folder / "missing", ExitCode::checkpoint); });
  CHECK(missing.code() == ExitCode::checkpoint);
  CHECK(mentions(missing, folder / "missing"));
  CHECK(mentions(missing, "No such file"));
  CHECK(!missing.hint().empty());

  const Error is_folder = expect_error([&] { File::open(folder.path()); });
  CHECK(is_folder.code() == ExitCode::data);
  CHECK(mentions(is_folder, "directory"));

  const Error device = expect_error([] { File::open("/dev/null"); });
  CHECK(mentions(device, "not a regular file"));
}

TEST_CASE("reading beyond the end says where the file ends") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "short", "12345");
  const File file = File::open(folder / "short");
  char text[4];
  const Error error = expect_error([&] { file.read_at(3, std::as_writable_bytes(std::span(text))); });
  CHECK(error.code() == ExitCode::data);
  CHECK(mentions(error, folder / "short"));
  CHECK(mentions(error, "ends at byte 5"));
}

TEST_CASE("an atomic write replaces the whole file and leaves nothing else") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "latest", "step_00001000 and more\n");
  write_file_atomic(folder / "latest", std::string_view("a\0b", 3));
  CHECK(read_text_file(folder / "latest") == std::string("a\0b", 3));
  write_file_atomic(folder / "latest", "");
  CHECK(read_text_file(folder / "latest").empty());
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a full disk is Error(disk), and the old file survives") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "state", "old");
  const std::string large(100000, 'x');
  {
    const FileSizeLimit full(4096);
    const Error error = expect_error([&] { write_file_atomic(folder / "state", large); });
    CHECK(error.code() == ExitCode::disk);
    CHECK(mentions(error, folder / "state"));
    CHECK(!error.hint().empty());
  }
  CHECK(read_text_file(folder / "state") == "old");
  CHECK(files_in(folder.path()) == 1);

  const Error no_space = expect_error([] { File::create("/dev/full").write_at(0, bytes_of("x")); });
  CHECK(no_space.code() == ExitCode::disk);
  CHECK(mentions(no_space, "No space left"));
  CHECK(no_space.hint() == "free some disk space, or choose another folder");
}

TEST_CASE("a device or a pipe is not replaced by a file") {
  TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path : {pipe, std::string("/dev/null")}) {
    const Error error = expect_error([&] { write_file_atomic(path, "text"); });
    CHECK(error.code() == ExitCode::disk);
    CHECK(std::filesystem::is_other(path));
  }
}

TEST_CASE("an output that is a link is written where it leads, and the link stays") {
  namespace fs = std::filesystem;
  TemporaryFolder folder;
  fs::create_directory(folder / "disk");
  write_file_atomic(folder / "disk/page", "old");
  fs::create_symlink("disk/page", folder / "link");
  fs::create_symlink(folder / "link", folder / "chain");
  fs::create_symlink("disk/new", folder / "dangling");
  fs::create_symlink("loop", folder / "loop");
  for (const char* name : {"link", "chain", "dangling"}) {
    write_file_atomic(folder / name, name);
    CHECK(fs::is_symlink(folder / name));
    CHECK(read_text_file(folder / name) == name);
  }
  CHECK(read_text_file(folder / "disk/page") == "chain");
  CHECK(read_text_file(folder / "disk/new") == "dangling");
  CHECK(files_in(folder / "disk") == 2); // nothing temporary
  CHECK(expect_error([&] { write_file_atomic(folder / "loop", "x"); }).code() == ExitCode::disk);
  write_file_atomic(folder / "chain", "ours", Links::replace);
  CHECK_FALSE(fs::is_symlink(folder / "chain"));
  CHECK(read_text_file(folder / "disk/page") == "chain");
}

TEST_CASE("passing folders leave what was there, and nothing else") {
  namespace fs = std::filesystem;
  TemporaryFolder folder;
  fs::create_directory(folder / "there");
  {
    const ScopedFolders made(folder / "there/a/b"), none(folder / "there");
    CHECK(fs::is_directory(folder / "there/a/b"));
  }
  CHECK(fs::is_directory(folder / "there"));
  CHECK(fs::is_empty(folder / "there"));
  {
    const ScopedFolders made(folder / "there/a/b");
    write_file_atomic(folder / "there/a/kept", "x");
  }
  CHECK(fs::exists(folder / "there/a/kept"));
  CHECK_FALSE(fs::exists(folder / "there/a/b"));
  const std::string long_name(300, 'x'); // that no file system takes
  CHECK(expect_error([&] { ScopedFolders(folder / ("new/" + long_name)); }).code() == ExitCode::disk);
  CHECK_FALSE(fs::exists(folder / "new"));
}

TEST_CASE("a pending file that is not committed disappears") {
  const TemporaryFolder folder;
  {
    const PendingFile pending(folder / "a");
    pending.create().write_at(0, bytes_of("x"));
    CHECK(files_in(folder.path()) == 1);
  }
  CHECK(files_in(folder.path()) == 0);
}

TEST_CASE("a pending file is not written through a link of its temporary name") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "victim", "mine");
  PendingFile pending(folder / "a");
  std::filesystem::create_symlink("victim", pending.temporary_path());
  pending.create().write_at(0, bytes_of("x"));
  pending.commit();
  CHECK(read_text_file(folder / "a") == "x");
  CHECK_FALSE(std::filesystem::is_symlink(folder / "a"));
  CHECK(read_text_file(folder / "victim") == "mine");
}

TEST_CASE("writing where there is no folder is Error(disk)") {
  const TemporaryFolder folder;
  const Error error = expect_error([&] { write_file_atomic(folder / "none/a", "x"); });
  CHECK(error.code() == ExitCode::disk);
  CHECK(mentions(error, folder / "none/a"));
}

TEST_CASE("text files") {
  const TemporaryFolder folder;
  std::ofstream(folder / "a") << std::string(200000, 'y') << "\nend";
  const std::string text = read_text_file(folder / "a");
  CHECK(text.size() == 200004);
  CHECK(text.substr(200000) == "\nend");
  CHECK(expect_error([&] { read_text_file(folder / "b", ExitCode::usage); }).code() == ExitCode::usage);
  CHECK(mentions(expect_error([&] { read_text_file(folder.path()); }), "directory"));
}

TEST_CASE("folders") {
  const TemporaryFolder folder;
  make_folders(folder / "a/b/c");
  make_folders(folder / "a/b/c");
  CHECK(std::filesystem::is_directory(folder / "a/b/c"));
  write_file_atomic(folder / "file", "x");
  for (const char* path : {"file", "file/below"}) {
    const Error error = expect_error([&] { make_folders(folder / path); });
    CHECK(error.code() == ExitCode::disk);
    CHECK(mentions(error, folder / path));
  }
}

TEST_CASE("a symbolic link to nothing is named as such, wherever it stands in a path") {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/no/such/disk", folder / "link");
  for (const char* path : {"link", "link/run"}) {
    const Error error = expect_error([&] { make_folders(folder / path); });
    CHECK(error.code() == ExitCode::disk);
    CHECK(mentions(error, folder / "link" + " is a symbolic link to /no/such/disk, which does not exist"));
  }
  std::filesystem::create_directory(folder / "target");
  std::filesystem::create_symlink("target", folder / "good");
  CHECK_NOTHROW(make_folders(folder / "good/run"));
}

TEST_CASE("free space is found for a folder that does not exist yet") {
  const TemporaryFolder folder;
  const int64_t here = free_disk_space(folder.path());
  const int64_t below = free_disk_space(folder / "not/yet");
  CHECK(here > 0);
  CHECK(below > here / 2);
  CHECK(below < here * 2);
}

TEST_CASE("more shards than the soft limit of open files can be opened") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "a", "x");
  rlimit old_limit{};
  getrlimit(RLIMIT_NOFILE, &old_limit);
  if (old_limit.rlim_max <= 256) {
    MESSAGE("skipped: the hard limit of open files is tiny");
    return;
  }
  const rlimit low{64, old_limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &low);
  {
    std::vector<File> files;
    for (int i = 0; i < 128; ++i) files.push_back(File::open(folder / "a"));
    CHECK(files.size() == 128);
  }
  setrlimit(RLIMIT_NOFILE, &old_limit);
}

TEST_CASE("xxh64 gives the values of the reference implementation") {
  CHECK(xxh64({}) == 0xEF46DB3751D8E999u);
  CHECK(xxh64(bytes_of("a")) == 0xD24EC4F1A98C6E5Bu);
  CHECK(xxh64(bytes_of("abc")) == 0x44BC2CF5AD770999u);
  CHECK(xxh64(bytes_of("Nobody inspects the spammish repetition")) == 0xFBCEA83C8A378BF1u);
  CHECK(xxh64(bytes_of("Nobody inspects the spammish repetition"), 123) == 0xA8BA45551F24B7AEu);
  CHECK(xxh64(bytes_of("The quick brown fox jumps over the lazy dog")) == 0x0B242D361FDA71BCu);

  // The reference's own self-test: bytes from a multiplicative generator, hashed at lengths that take each path.
  std::vector<std::byte> buffer(222);
  uint64_t generator = 2654435761u;
  for (std::byte& byte : buffer) {
    byte = static_cast<std::byte>(generator >> 56);
    generator *= 11400714785074694797ull;
  }
  const std::span<const std::byte> all(buffer);
  CHECK(xxh64(all.first(0), 2654435761u) == 0xAC75FDA2929B17EFu);
  CHECK(xxh64(all.first(1)) == 0xE934A84ADB052768u);
  CHECK(xxh64(all.first(4)) == 0x9136A0DCA57457EEu);
  CHECK(xxh64(all.first(9)) == 0x554B1AE991EDA6B6u);
  CHECK(xxh64(all.first(14)) == 0x8282DCC4994E35C8u);
  CHECK(xxh64(all.first(14), 2654435761u) == 0xC3BD6BF63DEB6DF0u);
  CHECK(xxh64(all.first(222)) == 0xB641AE8CB691C174u);
  CHECK(xxh64(all.first(222), 2654435761u) == 0x20CB8AB7AE10C14Au);
}

TEST_CASE("numbers as people read them") {
  CHECK(format_count(0) == "0");
  CHECK(format_count(950) == "950");
  CHECK(format_count(999.6) == "1.0K");
  CHECK(format_count(50257) == "50.3K");
  CHECK(format_count(124475904) == "124.5M");
  CHECK(format_count(999960) == "1.0M");
  CHECK(format_count(9.95e9) == "9.9B");
  CHECK(format_bytes(512) == "512 B");
  CHECK(format_bytes(1000) == "1.0 KB");
  CHECK(format_bytes(27.9e9) == "27.9 GB");
  CHECK(format_bytes(3e15) == "3000.0 TB");
  CHECK(format_duration(0.85) == "850ms");
  CHECK(format_duration(0.9999) == "1.0s");
  CHECK(format_duration(4.21) == "4.2s");
  CHECK(format_duration(59.99) == "1m 00s");
  CHECK(format_duration(185) == "3m 05s");
  CHECK(format_duration(3599.7) == "1h 00m");
  CHECK(format_duration(4980) == "1h 23m");
  CHECK(format_duration(187300) == "2d 04h");
  CHECK(format_duration(-1) == "?");
}
