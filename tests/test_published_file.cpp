// The file by which rank 0 publishes its address and the secret: private, and never in the place of another file.
#include "engine/rendezvous/published_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>

#include "engine/system/files.h"
#include "tests/expect_error.h"
#include "tests/meeting_testing.h"
#include "tests/temporary_folder.h"

using namespace gpt2;
using namespace std::chrono_literals;

TEST_CASE("the secret on one host: a file of this user alone, gone once all have joined") {
  const std::string job = new_job(), where = MasterAddress(rank_of_job(1, 2, job), std::nullopt).description();
  const size_t begin = where.find(runtime_folder());
  REQUIRE(begin != std::string::npos);
  const std::string file = where.substr(begin, where.rfind(')') - begin);
  const auto outcomes = run_threads(2, [&](int rank) {
    if (rank == 1) {
      while (!std::filesystem::exists(file)) std::this_thread::sleep_for(1ms);
      struct stat status {};
      REQUIRE(::lstat(file.c_str(), &status) == 0);
      CHECK((status.st_mode & 0777) == 0600);
      REQUIRE(::lstat(runtime_folder().c_str(), &status) == 0);
      CHECK((status.st_mode & 0777) == 0700);
    }
    rendezvous(rank_of_job(rank, 2, job), 60s, kNothing);
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");
  CHECK_FALSE(std::filesystem::exists(file));

  const TemporaryFolder root;
  const std::string folder = runtime_folder(root.path());
  CHECK(runtime_folder(root.path()) == folder);
  ::chmod(folder.c_str(), 0755);
  CHECK(mentions(expect_error([&] { runtime_folder(root.path()); }), "is not a private folder of this user"));
  ::rmdir(folder.c_str());
  REQUIRE(::symlink(root.path().c_str(), folder.c_str()) == 0);
  CHECK(mentions(expect_error([&] { runtime_folder(root.path()); }), "is not a private folder of this user"));
}

TEST_CASE("a shared file leads to rank 0, and is gone afterwards") {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks";
  check_meeting(3, new_job(), "file:" + path);
  CHECK_FALSE(std::filesystem::exists(path));
  expect_error([&] { rendezvous(rank_of_job(0, 2, new_job(), "file:" + path), 50ms, kNothing); });
  CHECK_FALSE(std::filesystem::exists(path));
  const Error error = expect_error([&] { rendezvous(rank_of_job(1, 2, new_job(), "file:" + path), 50ms, kNothing); });
  CHECK(mentions(error, "could not reach rank 0 at the address in " + path));
  CHECK(expect_error([&] {
          rendezvous(rank_of_job(0, 2, new_job(), "file:" + (folder / "missing/ranks")), 50ms, kNothing);
        }).code() == ExitCode::disk);
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("the file of an earlier run is not believed, and is replaced") {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks", job = new_job();
  const Socket silent = listen_at(0, Reach::everywhere); // a stale file may lead to somebody else
  Publication stale{.key = random_key(), .port = local_port(silent), .addresses = {"127.0.0.1"}};
  for (const std::string& text : {to_text(stale), std::string("gpt2_ranks 12345 9\n127.0.0.1\n"), // of version 1
                                  to_text(stale).substr(0, 40)}) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0600);
    check_meeting(2, job, "file:" + path);
    CHECK_FALSE(std::filesystem::exists(path));
  }
}

TEST_CASE("a file whose rank 0 still waits is refused, and stays") {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks";
  const Publication publication{.key = random_key(), .port = 1, .addresses = {"here"}};
  PublishedFile waiting(path);
  waiting.write(publication);
  const Error error = expect_error([&] { rendezvous(rank_of_job(0, 2, new_job(), "file:" + path), 5s, kNothing); });
  CHECK(error.code() == ExitCode::communication);
  CHECK(mentions(error, path + ": the rank 0 of another job waits here"));
  CHECK(contains(error.hint(), "--master"));
  CHECK(read_text_file(path) == to_text(publication));
  waiting.remove();
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a file that only begins as a publication is not removed") {
  const TemporaryFolder folder;
  const std::string path = folder / "notes";
  const std::string notes = "gpt2_ranks 2\nwhat I learned of ranks\n", book = notes + std::string(1 << 16, 'x');
  for (const auto& [text, mode] : {std::pair{notes, 0644}, {book, 0600}}) {
    std::ofstream(path) << text;
    REQUIRE(::chmod(path.c_str(), static_cast<mode_t>(mode)) == 0);
    const Error error = expect_error([&] { rendezvous(rank_of_job(0, 2, new_job(), "file:" + path), 50ms, kNothing); });
    CHECK(error.code() == ExitCode::usage);
    CHECK(read_text_file(path) == text);
  }
}

TEST_CASE("a file of somebody else is refused by all ranks, and stays as it is") {
  const TemporaryFolder folder;
  const std::string path = folder / "thesis.txt", link = folder / "link", pipe = folder / "pipe";
  REQUIRE(::symlink(path.c_str(), link.c_str()) == 0);
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& text : {std::string("x\n"), std::string("gpt2_rankings\n"), std::string(1 << 20, 'x')}) {
    std::ofstream(path) << text;
    for (const std::string& named : {path, link, pipe, folder.path()}) {
      for (const int rank : {0, 1}) {
        CAPTURE(named);
        const Error error =
            expect_error([&] { rendezvous(rank_of_job(rank, 2, new_job(), "file:" + named), 5s, kNothing); });
        CHECK(error.code() == ExitCode::usage);
        CHECK(mentions(error, named + " exists and was not written by rank 0 of a job"));
        CHECK(contains(error.hint(), "--master file:PATH"));
      }
    }
    CHECK(read_text_file(path) == text);
  }
  std::ofstream(path, std::ios::trunc).close(); // as mktemp makes it: rank 0 cannot know whose it is
  CHECK(expect_error([&] { rendezvous(rank_of_job(0, 2, new_job(), "file:" + path), 5s, kNothing); }).code() ==
        ExitCode::usage);
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("a file that took the place of ours while ranks were joining stays") {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks";
  PublishedFile file(path);
  file.write({.key = std::nullopt, .port = 1, .addresses = {"here"}});
  std::filesystem::remove(path);
  std::ofstream(path) << "mine now";
  file.remove();
  CHECK(read_text_file(path) == "mine now");
}

TEST_CASE("a published file that others may read or write is not believed") {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks";
  const Publication publication{.key = random_key(), .port = 1, .addresses = {"here"}};
  std::ofstream(path) << to_text(publication);
  ::chmod(path.c_str(), 0600);
  CHECK(PublishedFile(path).read()->key == publication.key);
  ::chmod(path.c_str(), 0644);
  CHECK(mentions(expect_error([&] { PublishedFile(path).read(); }), "other users can read it"));
  std::ofstream(path) << to_text(
      {.key = std::nullopt, .port = 1, .addresses = {"here"}}); // with a token: nothing secret in it
  CHECK(PublishedFile(path).read()->port == 1);
}

TEST_CASE("publications are read whole or not at all") {
  const Publication publication{.key = random_key(), .port = 4000, .addresses = {"10.0.0.1", "fe80::1"}};
  const std::string text = to_text(publication);
  const auto read = read_publication(text);
  REQUIRE(read.has_value());
  CHECK(read->key == publication.key);
  CHECK(read->port == 4000);
  CHECK(read->addresses == publication.addresses);
  for (size_t size = 0; size < text.size(); ++size) {
    CHECK_FALSE(read_publication(text.substr(0, size)).has_value());
    CHECK(may_become_publication(text.substr(0, size)));
  }
  for (const char* bad : {"gpt2_ranks 3\nport 1\naddress a\nend\n", "gpt2_ranks 2\nport 0\naddress a\nend\n",
                          "gpt2_ranks 2\nport 65536\naddress a\nend\n", "gpt2_ranks 2\naddress a\nend\n",
                          "gpt2_ranks 2\nport 1\nend\n", "gpt2_ranks 2\nkey 12\nport 1\naddress a\nend\n",
                          "gpt2_ranks 2\nport 1\naddress a\nend\nend\n", "gpt2_ranks 2\nport 1\naddress\nend\n"}) {
    CHECK_FALSE(read_publication(bad).has_value());
  }
}
