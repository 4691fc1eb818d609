// The guarded JSON reader, and every kind of JSON file that our programs read, nested 100,000 deep: each is an Error
// that names the file, where nlohmann's values would overflow the stack.
#include "engine/base/json_reader.h"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>

#include "engine/data/dataset_folder.h"
#include "engine/data/dataset_manifest.h"
#include "engine/hdf5/manifest.h"
#include "engine/logging/metrics.h"
#include "engine/pretrained/safetensors.h"
#include "engine/pretrained/weight_source.h"
#include "engine/system/files.h"
#include "engine/text/tasks.h"
#include "tests/expect_error.h"
#include "tests/metrics_lines.h"
#include "tests/temporary_folder.h"
#include "tests/tokenizer_tables.h"
#include "tools/export_hf/export_hf.h"
#include "tools/prepare_data/document_reader.h"
#include "tools/prepare_data/journal.h"
#include "tools/prepare_data/parquet.h"
#include "tools/report/run_metrics.h"

using namespace gpt2;

namespace {

std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }
std::string nested_objects(int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += "{\"a\":";
  return text + "1" + std::string(depth, '}');
}

const std::string kBombs[] = {nested(100'000), nested_objects(100'000), std::string(100'000, '[')};

std::string why_not(std::string_view text, const JsonLimits& limits = {}) {
  std::string why;
  return parse_json(text, limits, &why).is_discarded() ? why : "";
}

} // namespace

TEST_CASE("texts within the limits are read, others are refused with the reason") {
  CHECK(parse_json("{\"a\": [1, 2]}")["a"][1] == 2);
  CHECK(parse_json(nested(64)).is_array());
  CHECK(why_not(nested(64)).empty());
  CHECK(why_not(nested(65)) == "it is nested more than 64 deep");
  CHECK(why_not(nested(5), {.depth = 4}) == "it is nested more than 4 deep");
  CHECK(why_not(nested_objects(65)) == "it is nested more than 64 deep");
  CHECK(why_not("[1, 2]", {.bytes = 5}) == "it is longer than 5 bytes");
  CHECK(why_not("[1, 2]", {.bytes = 6}).empty());
  for (const char* text : {"", "{", "{\"a\":", "[1,", "nonsense", "\"\xff\"", "[1] [2]", "1e999"}) {
    CAPTURE(text);
    CHECK(why_not(text).starts_with("it is not JSON: "));
    CHECK(why_not(text).find('\n') == std::string::npos);
  }
  CHECK(why_not("\"" + std::string(1 << 20, 'a')).size() < 200); // not the text itself
  CHECK(parse_json("nonsense").is_discarded());                  // without asking why
}

TEST_CASE("brackets in strings do not count") {
  const std::string many(1000, '[');
  CHECK(parse_json("[\"" + many + "\"]")[0] == many);
  CHECK(parse_json("[\"\\\"" + many + "\"]")[0] == "\"" + many); // behind an escaped quote
  CHECK(parse_json("[\"\\\\\", " + nested(63) + "]").is_array());
  CHECK(why_not("[\"\\\\\", " + nested(64) + "]") == "it is nested more than 64 deep");
}

TEST_CASE("keys that are there twice are refused where they matter") {
  const std::string twice = R"({"a": {"b": 1, "c": 2}, "d": [{"b": 3}, {"b": 4, "b": 5}]})";
  CHECK(why_not(twice).empty());
  CHECK(why_not(twice, {.unique_keys = true}) == "it has \"b\" twice");
  CHECK(why_not(R"({"a": {"b": 1}, "c": {"b": 2}})", {.unique_keys = true}).empty());
  CHECK(why_not("{\"a\":", {.unique_keys = true}).starts_with("it is not JSON"));
}

TEST_CASE("many keys take no time by their square") { // before: minutes
  constexpr int kKeys = 200'000;
  std::string entries, objects;
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":";
    entries += key + "1";
    objects += key + "{\"dtype\":1}";
  }
  const auto begin = std::chrono::steady_clock::now();
  CHECK(parse_json("{" + objects + "}", {.unique_keys = true}).size() == kKeys);
  CHECK(why_not("{" + objects + ",\"7\":1}", {.unique_keys = true}) == "it has \"7\" twice");
  std::string why;
  CHECK(parse_json<nlohmann::ordered_json>("{" + entries + "}", {}, &why).is_discarded());
  CHECK(why == "it has an object of more than 200 keys");
  CHECK(mentions(expect_error([&] { parse_dataset_manifest("{" + entries + "}", "dataset.json"); }), "200 keys"));
  CHECK_THROWS_AS(parse_manifest("{" + entries + "}", "manifest.json"), Error);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)); // about 0.3 s
}

TEST_CASE("no kind of file crashes a program by its depth") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  const auto refused = [&](ExitCode code, const std::string& name, const std::function<void()>& read) {
    const Error error = expect_error(read);
    CAPTURE(error.what());
    CHECK(error.code() == code);
    CHECK(mentions(error, name));
    CHECK(std::string(error.what()).size() < 1000);
  };
  for (const std::string& bomb : kBombs) {
    CAPTURE(bomb.substr(0, 20));
    // data sets
    refused(ExitCode::data, path, [&] { parse_dataset_manifest(bomb, path); });
    refused(ExitCode::data, path, [&] {
      parse_dataset_manifest("{\"format\": \"GPT-2 token shards\", \"version\": 1, \"options\": " + bomb + "}", path);
    });
    make_folders(prepare_folder(folder.path()));
    write_file_atomic(prepare_folder(folder.path()) + "/journal", bomb);
    refused(ExitCode::data, ".prepare/journal", [&] { read_journal(folder.path()); });
    refused(ExitCode::data, path + ":7",
            [&] { json_document({.text = bomb, .json = true, .path = path, .line = 7}, "text"); });
    refused(ExitCode::data, path + ":7", [&] {
      json_document({.text = "{\"text\": \"a\", \"more\": " + bomb + "}", .json = true, .path = path, .line = 7},
                    "text");
    });
    refused(ExitCode::data, "parquet", [&] { check_converter_line("{\"parquet_to_jsonl_failed\": " + bomb + "}"); });

    // models of others
    const std::string model = folder / "model";
    std::filesystem::remove_all(model);
    make_folders(model);
    const std::string weights = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    for (const std::string& header : {bomb, "{\"a\": " + bomb + "}", "{\"__metadata__\": " + bomb + "}"}) {
      const uint64_t length = header.size();
      std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(&length), 8) << header << "1234";
      refused(ExitCode::checkpoint, path, [&] { SafetensorsFile file(path); });
    }
    const uint64_t length = weights.size();
    std::ofstream(model + "/model.safetensors", std::ios::binary).write(reinterpret_cast<const char*>(&length), 8)
        << weights << "1234";
    write_file_atomic(model + "/config.json", bomb);
    refused(ExitCode::checkpoint, "config.json", [&] { open_hugging_face(model); });
    write_file_atomic(model + "/config.json", "{\"n_inner\": " + bomb + "}");
    refused(ExitCode::checkpoint, "config.json", [&] { open_hugging_face(model); });
    write_file_atomic(model + "/model.safetensors.index.json", "{\"weight_map\": " + bomb + "}");
    refused(ExitCode::checkpoint, "index.json", [&] { open_hugging_face(model); });

    // what runs write
    write_file_atomic(folder / "metrics.jsonl", run_line() + bomb + "\n");
    refused(ExitCode::data, "metrics.jsonl:2", [&] { RunReader(folder.path()); });
    write_file_atomic(folder / "metrics.jsonl", run_line() + line("step", 1, 1, "\"loss\": " + bomb));
    refused(ExitCode::data, "metrics.jsonl:2", [&] { RunReader(folder.path()); });
    write_file_atomic(folder / "metrics.jsonl", run_line() + bomb + "\n");
    CHECK_NOTHROW(MetricsLog(folder / "metrics.jsonl", 5)); // what is no line of steps is dropped when a run resumes
    refused(ExitCode::checkpoint, path, [&] { parse_manifest(bomb, path); });

    // tables and tasks
    const Tokenizer* t = tokenizer();
    if (!t) continue;
    write_file_atomic(path, bomb + "\n");
    refused(ExitCode::data, path, [&] { read_hellaswag(path, *t); });
    const std::string tables = folder / "tables";
    make_folders(tables);
    write_file_atomic(tables + "/vocab.bpe", read_text_file(Tokenizer::find_folder("") + "/vocab.bpe"));
    write_file_atomic(tables + "/encoder.json", bomb);
    refused(ExitCode::data, "encoder.json", [&] { Tokenizer{tables}; });
  }
}

TEST_CASE("an export does not replace a folder whose config.json is a bomb") {
  const TemporaryFolder folder;
  make_folders(folder / "out");
  write_file_atomic(folder / "out/config.json", kBombs[1]);
  class Nothing : public WeightSource {
   public:
    Nothing() : WeightSource("nothing") {}
    void fetch(const std::string&, int64_t, std::span<float>) override {}
  } nothing;
  const Error error = expect_error(
      [&] { export_hugging_face(nothing, {.output = folder / "out", .overwrite = true, .tokenizer = ""}); });
  CHECK(error.code() == ExitCode::usage);
  CHECK(read_text_file(folder / "out/config.json") == kBombs[1]);
}
