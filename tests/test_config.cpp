// Named shapes, their counts, and what is refused.
#include <doctest/doctest.h>

#include "engine/model/config.h"
#include "engine/model/model.h"
#include "tests/expect_error.h"
#include "tools/doctor/checks.h"

using namespace gpt2;

TEST_CASE("the four sizes have OpenAI's parameter counts") {
  CHECK(parameter_count(config_by_name("gpt2")) == 124'439'808);
  CHECK(parameter_count(config_by_name("gpt2-medium")) == 354'823'168);
  CHECK(parameter_count(config_by_name("gpt2-large")) == 774'030'080);
  CHECK(parameter_count(config_by_name("gpt2-xl")) == 1'557'611'200);
}

TEST_CASE("every name makes a valid model with GPT-2's vocabulary") {
  CHECK(config_names().size() == 5);
  for (const std::string& name : config_names()) {
    const GPT2Config config = config_by_name(name);
    CHECK_NOTHROW(validate(config));
    CHECK(config.name == name);
    CHECK(config.vocab == 50257);
    CHECK(config.padded_vocab == 50304);
  }
}

TEST_CASE("a depth names llm.c's models, and every depth in between a larger one") {
  for (const auto& [depth, name] :
       {std::pair{"d12", "gpt2"}, {"d24", "gpt2-medium"}, {"d36", "gpt2-large"}, {"d48", "gpt2-xl"}}) {
    const GPT2Config a = config_by_name(depth), b = config_by_name(name);
    CHECK(a.layers == b.layers);
    CHECK(a.heads == b.heads);
    CHECK(a.channels == b.channels);
    CHECK(a.seq_len == 1024);
  }
  CHECK(config_by_name("d6").channels == 384);
  CHECK(config_by_name("d60").channels == 1920);
  int64_t smaller = 0;
  for (int depth = 1; depth <= 100; ++depth) {
    const GPT2Config config = config_by_name(std::string("d").append(std::to_string(depth)));
    CHECK_NOTHROW(validate(config));
    CHECK(config.layers == depth);
    CHECK(config.head_dim() == 64);
    CHECK(parameter_count(config) > smaller);
    smaller = parameter_count(config);
  }
}

TEST_CASE("a wrong name gets the nearest one as a hint") {
  const Error typo = expect_error([] { config_by_name("gpt2-meduim"); });
  CHECK(typo.code() == ExitCode::usage);
  CHECK(std::string(typo.what()).find("gpt2-meduim") != std::string::npos);
  CHECK(typo.hint().find("gpt2-medium") != std::string::npos);
  CHECK(expect_error([] { config_by_name("nanno"); }).hint().find("nano?") != std::string::npos);
  const Error foreign = expect_error([] { config_by_name("llama-3-405b-instruct"); });
  CHECK(foreign.hint().find("nano, gpt2, gpt2-medium") != std::string::npos);
  for (const char* name : {"", "d", "d0", "d-3", "d9999", "d12x", "D12", "GPT2"}) {
    CHECK(expect_error([&] { config_by_name(name); }).code() == ExitCode::usage);
  }
}

TEST_CASE("impossible shapes are refused, each naming its flag") {
  const auto hint_for = [](auto change) {
    GPT2Config config = config_by_name("gpt2");
    change(config);
    const Error error = expect_error([&] { validate(config); });
    CHECK(error.code() == ExitCode::usage);
    return error.hint();
  };
  CHECK(hint_for([](GPT2Config& c) { c.layers = 0; }).find("--layers") != std::string::npos);
  CHECK(hint_for([](GPT2Config& c) { c.heads = -1; }).find("--heads") != std::string::npos);
  CHECK(hint_for([](GPT2Config& c) { c.channels = 0; }).find("--channels") != std::string::npos);
  CHECK(hint_for([](GPT2Config& c) { c.heads = 7; }).find("multiple of --heads") != std::string::npos);
  CHECK(hint_for([](GPT2Config& c) { c.seq_len = 0; }).find("--seq_len") != std::string::npos);
  CHECK(hint_for([](GPT2Config& c) { c.padded_vocab = 50256; }).find("50304") != std::string::npos);
}

TEST_CASE("a model is refused for a batch without sequences and for more tokens than it has positions") {
  const auto refused = [](int batch_size, int seq_len) {
    ModelOptions options;
    options.batch_size = batch_size, options.seq_len = seq_len;
    const Error error = expect_error([&] { validate(options); });
    CHECK(error.code() == ExitCode::usage);
    return std::string(error.what());
  };
  CHECK(refused(0, 1024).find("--batch_size 0") != std::string::npos);
  CHECK(refused(4, 0).find("--seq_len 0") != std::string::npos);
  CHECK(refused(4, 1025).find("1024 positions") != std::string::npos);
  CHECK_NOTHROW(validate(ModelOptions{}));
  ModelOptions impossible;
  impossible.config.heads = 7;
  CHECK_THROWS_AS(validate(impossible), Error);
}

TEST_CASE("an explicit shape replaces only what it names") {
  const GPT2Config base = config_by_name("gpt2");
  CHECK(with_shape(base, 0, 0, 0).name == "gpt2");
  const GPT2Config deeper = with_shape(base, 14, 0, 0);
  CHECK(deeper.layers == 14);
  CHECK(deeper.heads == 12);
  CHECK(deeper.channels == 768);
  CHECK(deeper.name == "14x768");
  const GPT2Config wider = with_shape(base, 0, 0, 1024);
  CHECK(wider.heads == 16); // still 64 channels a head
  CHECK(with_shape(base, 0, 8, 1024).heads == 8);
  CHECK_THROWS_AS(with_shape(base, 0, 5, 0), Error);
  CHECK_THROWS_AS(with_shape(base, -2, 0, 0), Error);
}

TEST_CASE("FLOPs per token are 6 N + 12 L C T") {
  const GPT2Config config = config_by_name("gpt2");
  const double without_positions = 124'439'808.0 - 1024.0 * 768;
  CHECK(flops_per_token(config, 1024) == doctest::Approx(6 * without_positions + 12.0 * 12 * 768 * 1024));
}

TEST_CASE("defaults follow the size, and a batch divides the target") {
  CHECK(defaults_for(config_by_name("gpt2")).max_lr == 6e-4f);
  CHECK(defaults_for(config_by_name("gpt2-medium")).max_lr == 3e-4f);
  CHECK(defaults_for(config_by_name("gpt2-large")).max_lr == 2.5e-4f);
  CHECK(defaults_for(config_by_name("gpt2-xl")).max_lr == 2e-4f);
  CHECK(defaults_for(config_by_name("gpt2")).max_steps * 512 * 1024 == doctest::Approx(10e9).epsilon(1e-4));
  for (const std::string& name : config_names()) {
    const ModelDefaults defaults = defaults_for(config_by_name(name));
    CHECK(defaults.target_batch_size % defaults.batch_size == 0);
    CHECK(defaults.warmup_steps < defaults.max_steps);
  }
}
