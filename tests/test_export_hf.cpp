// A folder of Hugging Face's: what an export may replace, and what it leaves alone. tests/e2e/test_exchange.py loads
// one.
#include "tools/export_hf/export_hf.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

namespace fs = std::filesystem;

class Zeros : public WeightSource {
 public:
  Zeros() : WeightSource("zeros") {
    config_ = with_shape(config_by_name("nano"), 1, 1, 8);
    config_.seq_len = 16;
  }

 protected:
  void fetch(const std::string&, int64_t, std::span<float> values) override { std::ranges::fill(values, 0.0f); }
};

struct Export {
  TemporaryFolder folder;
  ExportOptions options;

  Export() {
    options.output = folder / "out";
    make_folders(folder / "tables"); // they are copied, and not looked into
    write_file_atomic(folder / "tables/encoder.json", "{}");
    write_file_atomic(folder / "tables/vocab.bpe", "");
  }
  std::vector<std::string> run() {
    Zeros weights;
    return export_hugging_face(weights, options);
  }
  std::string path(const std::string& name) const { return folder / ("out/" + name); }
  std::string refusal() {
    const Error error = expect_error([&] { run(); });
    CHECK(error.code() == ExitCode::usage);
    CHECK(contains(error.hint(), "choose another --output"));
    return error.what();
  }
};

} // namespace

TEST_CASE("--overwrite replaces all that an export writes: with a tokenizer or without, in one file or many") {
  Export export_;
  CHECK(export_.run().size() == 2);
  const Error in_use = expect_error([&] { export_.run(); });
  CHECK(in_use.code() == ExitCode::usage);
  CHECK(contains(in_use.hint(), "--overwrite"));
  export_.options.overwrite = true;
  export_.options.tokenizer = export_.folder / "tables";
  export_.options.file_bytes = 1000;
  CHECK(export_.run().size() > 10);
  export_.options.file_bytes = 1 << 30;
  CHECK(export_.run().size() == 7);
  CHECK(export_.run().size() == 7);
}

TEST_CASE("--overwrite leaves a folder alone that holds what no export writes") {
  Export export_;
  export_.options.overwrite = true;
  export_.run();
  for (const std::string name :
       {"README.md", ".gitattributes", "model-1-of-2.safetensors", "model-00001-of-00002.bin"}) {
    CAPTURE(name);
    write_file_atomic(export_.path(name), "mine");
    CHECK(contains(export_.refusal(), "out holds " + name + ", which is not part of an export"));
    CHECK(read_text_file(export_.path(name)) == "mine");
    fs::remove(export_.path(name));
  }
  for (const std::string name : {".git", "vocab.json"}) { // a folder by a file's name is none of ours either
    make_folders(export_.path(name));
    CHECK(contains(export_.refusal(), "out holds " + name));
    fs::remove(export_.path(name));
  }
  export_.options.overwrite = false; // not proposed where it would not help
  write_file_atomic(export_.path("README.md"), "mine");
  CHECK_FALSE(contains(expect_error([&] { export_.run(); }).hint(), "--overwrite"));
}

TEST_CASE("--overwrite leaves another model alone") {
  Export export_;
  export_.options.overwrite = true;
  make_folders(export_.options.output);
  write_file_atomic(export_.path("model.safetensors"), "theirs");
  CHECK(contains(export_.refusal(), "out holds no config.json of a GPT-2 model"));
  for (const std::string config : {R"({"model_type": "llama"})", R"({"model_type": 5})", "{}", "[]", "{"}) {
    CAPTURE(config);
    write_file_atomic(export_.path("config.json"), config);
    CHECK(contains(export_.refusal(), "out holds no config.json of a GPT-2 model"));
  }
  CHECK(read_text_file(export_.path("model.safetensors")) == "theirs");
  write_file_atomic(export_.path("config.json"), R"({"model_type": "gpt2"})");
  CHECK(export_.run().size() == 2);
}

TEST_CASE("what is put into the folder while an export is under way stays") {
  Export export_;
  export_.options.stop = [&] {
    make_folders(export_.options.output);
    write_file_atomic(export_.path("notes.txt"), "mine");
    return false;
  };
  CHECK(contains(export_.refusal(), "out is not empty"));
  CHECK(read_text_file(export_.path("notes.txt")) == "mine");
}
