// manifest.json, and what it finds: damage, missing, added and swapped files, manifests of another checkpoint.
//
// GPT2_BIT_FLIPS, GPT2_TRUNCATIONS: how many of each (make faults asks for 10,000 and 1,000).
#include "engine/hdf5/manifest.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/verify.h"
#include "engine/hdf5/parallel_for.h"
#include "engine/hdf5/state_reader.h"
#include "tests/expect_error.h"
#include "tests/sharded_model.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

namespace {

constexpr int kRanks = 3;

int times(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

GPT2Config tiny_config() {
  return {.name = "tiny", .layers = 1, .heads = 1, .channels = 8, .seq_len = 8, .vocab = 120, .padded_vocab = 128};
}

// A checkpoint of three ranks to damage, and how it was.
struct Patient {
  TemporaryFolder root;
  const std::string folder = root / "run/step_00001000";
  std::vector<std::string> names;
  std::vector<std::string> contents; // by name

  Patient() {
    write_all(folder, kRanks, tiny_config());
    for (const std::string& name : names_in(folder)) {
      names.push_back(name);
      contents.push_back(read_file(folder + "/" + name));
    }
  }
  std::string path(size_t file) const { return folder + "/" + names[file]; }
  // In place: a file that is emptied and written anew goes to the disk at once on ext4, ten thousand times.
  void put(size_t file, const std::string& bytes) const {
    std::ofstream(path(file), std::ios::binary | std::ios::app).close(); // where it is not there
    std::fstream(path(file), std::ios::binary | std::ios::in | std::ios::out) << bytes;
    fs::resize_file(path(file), bytes.size());
  }
  void heal() const {
    for (const std::string& name : names_in(folder)) fs::remove_all(folder + "/" + name);
    for (size_t file = 0; file < names.size(); ++file) put(file, contents[file]);
  }
};

// What reading it says; the model is as it was.
std::string refusal(const std::string& folder) {
  ShardedModel model(0, 1, true, tiny_config());
  const Error error = expect_error([&] { load_checkpoint(folder, model); });
  CHECK(error.code() == ExitCode::checkpoint);
  CHECK(model.is_untouched());
  CHECK_FALSE(contains(error.what(), "unknown reason"));
  return error.what();
}

// A manifest whose fields are `edit`ed, with a hash that is right.
std::string sealed(const Manifest& manifest, const std::function<void(nlohmann::ordered_json&)>& edit) {
  auto json = nlohmann::ordered_json::parse(to_text(manifest));
  json.erase("xxh3_128");
  edit(json);
  const std::string text = json.dump(1);
  json["xxh3_128"] = hash_of(std::as_bytes(std::span(text)));
  return json.dump(1) + "\n";
}

} // namespace

TEST_CASE("jobs are done once each; the error of the lowest number is thrown") {
  std::vector<std::atomic<int>> done(100);
  parallel_for(done.size(), [&](size_t number) { ++done[number]; });
  for (const auto& times : done) CHECK(times == 1);
  parallel_for(0, [](size_t) { FAIL("there is none"); });
  const Error error = expect_error([&] {
    parallel_for(100, [&](size_t number) {
      if (number >= 17) throw Error(ExitCode::disk, "job " + std::to_string(number));
    });
  });
  CHECK(error.what() == std::string("job 17"));
}

TEST_CASE("hashes are those of xxh128sum, block by block") {
  CHECK(hash_of({}) == "99aa06d3014798d86001c324468d497f"); // as the specification's test vectors say
  TemporaryFolder root;
  std::string bytes(static_cast<size_t>(2 * kBlockBytes + 5), '\0');
  for (size_t i = 0; i < bytes.size(); i += 1000) bytes[i] = static_cast<char>(Rng(1).bits(i));
  std::ofstream(root / "file", std::ios::binary) << bytes;
  const FileHashes hashes = hash_file(root / "file");
  CHECK(hashes.name == "file");
  CHECK(hashes.bytes == static_cast<int64_t>(bytes.size()));
  REQUIRE(hashes.blocks.size() == 3);
  const auto all = std::as_bytes(std::span(bytes));
  const auto block = static_cast<size_t>(kBlockBytes);
  CHECK(hashes.blocks[0] == hash_of(all.first(block)));
  CHECK(hashes.blocks[1] == hash_of(all.subspan(block, block)));
  CHECK(hashes.blocks[2] == hash_of(all.subspan(2 * block)));
  CHECK(hashes.block_bytes(2) == 5);
  CHECK(contains(damaged_block("p", hashes, 1).what(),
                 "p is damaged: bytes 16777216 to 33554431 do not match their hash"));
  CHECK(contains(damaged_block("p", hashes, 2).what(), "bytes 33554432 to 33554436"));

  std::ofstream(root / "empty").flush();
  CHECK(hash_file(root / "empty").blocks.empty());
}

TEST_CASE("a verified file gives what is there, across blocks, and nothing of a damaged block") {
  TemporaryFolder root;
  std::string bytes(static_cast<size_t>(3 * kBlockBytes + 1000), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 251);
  std::ofstream(root / "file", std::ios::binary) << bytes;
  const FileHashes hashes = hash_file(root / "file");
  const auto cache = std::make_shared<BlockCache>(1);
  const VerifiedFile file(root.path(), hashes, cache);
  CHECK(file.bytes() == static_cast<int64_t>(bytes.size()));
  const auto size = static_cast<int64_t>(bytes.size());
  for (const auto& [begin, count] : std::vector<std::pair<int64_t, int64_t>>{{0, size},
                                                                             {0, 0},
                                                                             {5, 10},
                                                                             {kBlockBytes - 1, 2},
                                                                             {kBlockBytes, kBlockBytes},
                                                                             {1, size - 2},
                                                                             {size - 1, 1}}) {
    std::string out(static_cast<size_t>(count), 'x');
    file.read(begin, std::as_writable_bytes(std::span(out)));
    CHECK((out == bytes.substr(static_cast<size_t>(begin), static_cast<size_t>(count))));
  }

  // Many at once, in any order: inside a block, over two, all of the rest, and nothing.
  const std::pair<int64_t, int64_t> wanted[] = {{2 * kBlockBytes - 1, size - 2 * kBlockBytes + 1},
                                                {7, 100},
                                                {3, 0},
                                                {kBlockBytes - 5, 10},
                                                {kBlockBytes + 90, 10}};
  std::vector<std::string> outs;
  for (const auto& [begin, count] : wanted) outs.emplace_back(static_cast<size_t>(count), 'x');
  std::vector<FilePart> parts;
  for (size_t i = 0; i < outs.size(); ++i)
    parts.push_back({wanted[i].first, std::as_writable_bytes(std::span(outs[i]))});
  file.read_parts(parts);
  for (size_t i = 0; i < outs.size(); ++i)
    CHECK((outs[i] == bytes.substr(static_cast<size_t>(wanted[i].first), outs[i].size())));

  std::fstream(root / "file", std::ios::in | std::ios::out | std::ios::binary).seekp(kBlockBytes + 7).put('\xFF');
  const VerifiedFile damaged(root.path(), hashes, std::make_shared<BlockCache>(1));
  std::string out(100, 'x');
  damaged.read(0, std::as_writable_bytes(std::span(out)));
  for (int time = 0; time < 2; ++time) { // a block that failed is not kept
    CHECK(mentions(expect_error([&] { damaged.read(2 * kBlockBytes - 50, std::as_writable_bytes(std::span(out))); }),
                   root / "file is damaged: bytes 16777216 to 33554431 do not match their hash in manifest.json"));
  }
  std::string whole(bytes.size(), 'x');
  CHECK(mentions(expect_error([&] { damaged.read(0, std::as_writable_bytes(std::span(whole))); }), "16777216"));
  // The byte that changed lies beside what is wanted of its block.
  CHECK(mentions(expect_error([&] { damaged.read_parts({parts[4]}); }), "16777216"));
  damaged.read_parts({{parts[0].offset + 1, parts[0].out.subspan(1)}, parts[1]}); // other blocks
}

TEST_CASE("a manifest reads back as it was written, and has one text only") {
  Manifest manifest{.step = 7, .ranks = 2, .files = {}};
  const std::string hash(32, 'a');
  manifest.files = {{"state.h5", kBlockBytes + 1, {hash, hash}}, {"rank_00001.h5", 5, {hash}}, {"options.toml", 0, {}}};
  const std::string text = to_text(manifest);
  CHECK(parse_manifest(text, "m") == manifest);
  const std::string brackets(1 << 20, '['); // a parser that recurses would end here
  for (const std::string& other : {text + " ", text.substr(0, text.size() - 1), " " + text, brackets})
    CHECK(mentions(expect_error([&] { parse_manifest(other, "m"); }), "m is damaged: "));

  const auto says = [&](const char* words, const std::function<void(nlohmann::ordered_json&)>& edit) {
    const Error error = expect_error([&] { parse_manifest(sealed(manifest, edit), "m"); });
    CHECK(error.code() == ExitCode::checkpoint);
    CAPTURE(error.what());
    CHECK(mentions(error, words));
  };
  CHECK(parse_manifest(sealed(manifest, [](auto&) {}), "m") == manifest);
  says("m has version 3; this program reads versions 1 to 2", [](auto& json) { json["version"] = 3; });
  says("it has no written", [](auto& json) { json["version"] = 2; });
  says("not the manifest of a checkpoint", [](auto& json) { json["format"] = "weather"; });
  says("it has no step", [](auto& json) { json.erase("step"); });
  says("step is -1", [](auto& json) { json["step"] = -1; });
  says("step is 1.0", [](auto& json) { json["step"] = 1.0; });
  says("step is \"1\"", [](auto& json) { json["step"] = "1"; });
  says("step is 18446744073709551615", [](auto& json) { json["step"] = UINT64_MAX; });
  says("ranks is 0", [](auto& json) { json["ranks"] = 0; });
  says("ranks is 100000", [](auto& json) { json["ranks"] = 100000; });
  says("it names 3 files of 3 ranks", [](auto& json) { json["ranks"] = 3; });
  says("block_bytes is 16", [](auto& json) { json["block_bytes"] = 16; });
  says("files is not a list", [](auto& json) { json["files"] = 1; });
  says("it names 2 files", [](auto& json) { json["files"].erase(0); });
  says("rank_00001.h5 is in the place of state.h5", [](auto& json) { std::swap(json["files"][0], json["files"][1]); });
  says("../x.h5 is in the place of state.h5", [](auto& json) { json["files"][0]["name"] = "../x.h5"; });
  says("entry is not an object", [](auto& json) { json["files"][0] = 5; });
  says("name is not a text", [](auto& json) { json["files"][0]["name"] = 5; });
  says("bytes is null", [](auto& json) { json["files"][0]["bytes"] = nullptr; });
  says("another number of hashes", [](auto& json) { json["files"][0]["bytes"] = kBlockBytes; });
  says("another number of hashes", [](auto& json) { json["files"][0]["xxh3_128"] = "none"; });
  says("state.h5 has a bad hash", [](auto& json) { json["files"][0]["xxh3_128"][1] = 5; });
  says("state.h5 has a bad hash", [](auto& json) { json["files"][0]["xxh3_128"][1] = std::string(32, 'A'); });
  says("state.h5 has a bad hash", [](auto& json) { json["files"][0]["xxh3_128"][1] = "a"; });
  says("unknown keys", [](auto& json) { json["more"] = 5; });
  says("unknown keys", [](auto& json) { json["files"][0]["more"] = 5; });

  for (const double loss : {3.25 + 1e-15, 1.0 / 3, 1e30, 0.0}) {
    manifest.summary = {.written = "2026-01-01T00:00:00Z",
                        .model = "gpt2 \xC3\xA4",
                        .precision = "fp8",
                        .val_loss = loss,
                        .val_step = -1};
    CHECK(parse_manifest(to_text(manifest), "m") == manifest);
  }
  says("written is empty", [](auto& json) { json["written"] = ""; });
  says("model is not a text", [](auto& json) { json["model"] = 5; });
  says("val_loss is null", [](auto& json) { json["val_loss"] = nullptr; });
  says("val_step is 1.5", [](auto& json) { json["val_step"] = 1.5; });
  says("unknown keys", [](auto& json) { json["version"] = 1; });
}

TEST_CASE("a checkpoint is valid as it was written, by any number of ranks") {
  for (const int ranks : {1, 4}) {
    TemporaryFolder root;
    write_all(root / "step_00001000", ranks, tiny_config());
    CHECK(why_invalid(root / "step_00001000") == "");
    const Manifest manifest = read_manifest(root / "step_00001000");
    CHECK(manifest.step == 1000);
    CHECK(manifest.ranks == ranks);
    CHECK(manifest.files.size() == static_cast<size_t>(ranks) + 1);
  }
}

TEST_CASE("every flipped bit is found, and the file is named") {
  const Patient patient;
  const int flips = times("GPT2_BIT_FLIPS", 400);
  const Rng rng(17);
  int found = 0;
  for (int flip = 0; flip < flips; ++flip) {
    const size_t file = static_cast<size_t>(flip) % patient.names.size();
    std::string bytes = patient.contents[file];
    const size_t at = rng.bits(static_cast<uint64_t>(flip)) % (8 * bytes.size());
    bytes[at / 8] = static_cast<char>(bytes[at / 8] ^ (1 << at % 8));
    patient.put(file, bytes);
    const std::string why = why_invalid(patient.folder);
    CAPTURE(at);
    CAPTURE(why);
    CHECK(contains(why, patient.path(file)));
    found += !why.empty();
    if (flip % 16 < static_cast<int>(patient.names.size()) && patient.names[file] != "options.toml")
      CHECK(contains(refusal(patient.folder), patient.path(file)));
    patient.put(file, patient.contents[file]);
  }
  MESSAGE("bit flips: " << flips << ", found and named: " << found);
  CHECK(why_invalid(patient.folder) == "");
}

TEST_CASE("every truncated, grown or missing file is found and named") {
  const Patient patient;
  const int cuts = times("GPT2_TRUNCATIONS", 50);
  const Rng rng(18);
  int found = 0;
  for (int cut = 0; cut < cuts; ++cut) {
    const size_t file = static_cast<size_t>(cut) % patient.names.size();
    const std::string& bytes = patient.contents[file];
    patient.put(file, bytes.substr(0, rng.bits(static_cast<uint64_t>(cut)) % bytes.size()));
    const std::string why = why_invalid(patient.folder);
    CAPTURE(why);
    CHECK(contains(why, patient.path(file)));
    found += !why.empty();
    CHECK(contains(refusal(patient.folder), patient.path(file)));
    patient.put(file, bytes);
  }
  MESSAGE("truncations: " << cuts << ", found and named: " << found);
  for (size_t file = 0; file < patient.names.size(); ++file) {
    patient.put(file, patient.contents[file] + '\0');
    CHECK(contains(why_invalid(patient.folder), patient.path(file) + " is damaged: "));
    fs::remove(patient.path(file));
    const std::string why = why_invalid(patient.folder);
    CAPTURE(why);
    if (patient.names[file] == "manifest.json")
      CHECK(contains(why, patient.path(file) + " is missing: the checkpoint cannot be verified"));
    else
      CHECK(contains(why, patient.path(file) + " is missing: manifest.json lists it"));
    CHECK(refusal(patient.folder) == why);
    fs::create_directory(patient.path(file)); // in its place
    CHECK(contains(why_invalid(patient.folder), patient.path(file)));
    patient.heal();
  }
  CHECK(why_invalid(patient.folder) == "");
}

TEST_CASE("files that do not belong to the checkpoint are named; other names mean nothing") {
  const Patient patient;
  for (const char* name : {"rank_00003.h5", "rank_00009.h5", "other.h5"}) {
    fs::copy_file(patient.folder + "/rank_00001.h5", patient.folder + "/" + name);
    const std::string words = std::string(name) + " does not belong to the checkpoint: manifest.json does not name it";
    CHECK(contains(why_invalid(patient.folder), words));
    CHECK(contains(refusal(patient.folder), words));
    fs::remove(patient.folder + "/" + name);
  }
  for (const char* name : {".nfs0001", "notes.txt", "state.h5~"}) std::ofstream(patient.folder + "/" + name) << "x";
  CHECK(why_invalid(patient.folder) == "");
}

TEST_CASE("swapped files and a manifest of another save are found") {
  const Patient patient;
  const auto exchange = [&](const std::string& a, const std::string& b) {
    fs::rename(a, a + ".aside");
    fs::rename(b, a);
    fs::rename(a + ".aside", b);
  };
  exchange(patient.folder + "/rank_00001.h5", patient.folder + "/rank_00002.h5");
  CHECK(contains(why_invalid(patient.folder), patient.folder + "/rank_00001.h5 is damaged: "));
  CHECK(contains(refusal(patient.folder), "/rank_00001.h5 is damaged: "));
  patient.heal();

  // Two checkpoints of one run: their files are of equal sizes.
  TemporaryFolder root;
  Run run(root.path());
  StateOnlyModel first(1), second(2);
  const std::string older = run.save(first, state_of(10), false), newer = run.save(second, state_of(20), false);
  for (const char* name : {"manifest.json", "state.h5"}) {
    exchange(older + "/" + name, newer + "/" + name);
    for (const std::string& folder : {older, newer}) {
      CHECK(contains(why_invalid(folder), folder + "/state.h5 is damaged: bytes 0 to "));
      StateOnlyModel model(3);
      CHECK(mentions(expect_error([&] { load_checkpoint(folder, model); }), folder + "/state.h5 is damaged: "));
    }
    exchange(older + "/" + name, newer + "/" + name);
  }
  CHECK(holds(older, 1));
  CHECK(holds(newer, 2));
}
