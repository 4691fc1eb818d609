#include "tools/report/page.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "engine/system/folder_lock.h"
#include "tests/contains.h"
#include "tests/metrics_lines.h"
#include "tests/temporary_folder.h"
#include "tools/report/heat_map.h"
#include "tools/report/page_data.h"
#include "tools/report/run_state.h"

using namespace gpt2;

namespace {

RunReader reader(const TemporaryFolder& root, const std::string& text) {
  std::ofstream(root / "metrics.jsonl") << text;
  return RunReader(root.path());
}

double heat_value(const std::string& code) { // as page.js reads it
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const size_t number = 64 * digits.find(code[0]) + digits.find(code[1]);
  return number == 0   ? std::nan("")
         : number == 1 ? 0
                       : std::pow(10, -12 + 20 * (static_cast<double>(number) - 2) / 4093);
}

} // namespace

TEST_CASE("a cell of a heat map keeps its value to a percent, zero and none apart") {
  for (const double value : {1e-12, 3.7e-7, 0.01, 1.0, 448.0, 57344.0, 1e8})
    CHECK(heat_value(heat_code(value)) == doctest::Approx(value).epsilon(0.01));
  CHECK(heat_code(0) == "AB");
  CHECK(heat_code(std::nan("")) == "AA");
  CHECK(heat_value(heat_code(1e20)) == doctest::Approx(1e8)); // the end of the scale
}

TEST_CASE("a heat map has a row for each layer; a column is the worst of its records") {
  TensorRecords records;
  records.tensors = {"h.0/fc/act", "h.1/fc/act", "lm_head/act"};
  records.values.resize(3);
  for (int64_t step = 1; step <= 40; ++step) {
    records.at.push_back({step, 0, 0});
    for (size_t i = 0; i < 2; ++i)
      records.values[i].push_back({static_cast<float>(step), i == 1 && step == 7 ? 0.5f : 0.0f, 0, 0});
    if (step <= 20) records.values[2].push_back({1, 0, 0, 0});
  }
  const nlohmann::json map = heat_map_json(records, 3 * 3 * 10); // ten columns
  CHECK(map["bucket"] == 5);
  CHECK(map["layers"] == nlohmann::json({"h.0", "h.1", "lm_head"}));
  CHECK(map["step"].size() == 8);
  CHECK(map["step"][1] == 10);
  const auto cell = [&](const char* kind, const char* metric, size_t row, size_t column) {
    const std::string codes = map["kinds"][kind][metric][row];
    return heat_value(codes.substr(2 * column, 2));
  };
  CHECK(cell("fc/act", "amax", 0, 1) == doctest::Approx(10).epsilon(0.01));
  CHECK(cell("fc/act", "saturated", 1, 1) == doctest::Approx(0.5).epsilon(0.01));
  CHECK(cell("fc/act", "saturated", 0, 1) == 0);
  CHECK(map["kinds"]["fc/act"]["amax"][2] == ""); // the head has no such tensor
  CHECK_FALSE(map["kinds"]["fc/act"].contains("telling_flushed"));
}

TEST_CASE("a heat map tells flushed shares that say nothing of a scale from the others, layer by layer") {
  TensorRecords records;
  records.tensors = {"h.0/fcproj/act", "h.1/fcproj/act"};
  records.at = {{10, 0, 0}, {20, 0, 0}};
  const float none = std::nanf("");
  records.values = {{{1, 0, 0.25f, 0.25f}, {1, 0, 0.25f, 0.25f}}, {{1, 0, 0.5f, 0.5f}, {1, 0, 0.5f, none}}};
  const nlohmann::json maps = heat_map_json(records, 1000)["kinds"]["fcproj/act"];
  const std::string quarter = heat_code(0.25), half = heat_code(0.5);
  CHECK(maps["flushed"] == nlohmann::json({quarter + quarter, half + half}));
  CHECK(maps["telling_flushed"] == nlohmann::json({"", half + "AA"}));
}

TEST_CASE("states") {
  TemporaryFolder root;
  CHECK(state_of(reader(root, run_line("start", 0, 2) + step_line(1, 1, "3") + step_line(2, 2, "3"))) == "done");
  const std::string saved = line("event", 1, 2, "\"event\":\"save\",\"path\":\"step_00000001\",\"best\":false");
  CHECK(state_of(reader(root, run_line() + step_line(1, 1, "3") + saved)) == "stopped"); // by a signal: it saved
  CHECK(state_of(reader(root, run_line() + step_line(1, 1, "3") + saved + step_line(2, 2, "3"))) == "failed");
  CHECK(state_of(reader(root, run_line() + step_line(1, 1, "3"))) == "failed"); // killed
  CHECK(state_of(reader(root, run_line())) == "failed");
  CHECK(state_of(reader(root, run_line() + step_line(1, 1, "null", "skipped_nonfinite"))) == "diverged");
  std::string skips = run_line();
  for (int step = 1; step <= 3; ++step) skips += step_line(step, step, "9", "skipped_loss_z"); // max_skipped is 3
  CHECK(state_of(reader(root, skips)) == "diverged");
  const FolderLock training(root.path(), "--run_name");
  CHECK(state_of(reader(root, run_line() + step_line(1, 1, "3"))) == "running");
}

TEST_CASE("the model of a run in numbers, from new and from old logs") {
  const auto text = [](const std::string& json) { return model_text(nlohmann::json::parse(json)); };
  CHECK(text(R"({"parameters":4321,"layers":2,"channels":16,"options":{"model":"nano","layers":"auto"}})") ==
        "nano, 2 layers, 16 channels, 4.3K parameters");
  CHECK(text(R"({"parameters":124439808,"options":{"model":"gpt2","layers":"auto","channels":"auto"}})") ==
        "gpt2, 12 layers, 768 channels, 124.4M parameters");
  CHECK(text(R"({"parameters":123702528,"options":{"model":"gpt2","seq_len":64}})") ==
        "gpt2, 12 layers, 768 channels, 123.7M parameters");
  CHECK(text(R"({"parameters":1000,"options":{"model":"gpt2"}})") == "gpt2, 1.0K parameters"); // another shape
  CHECK(text(R"({"parameters":1000,"options":{"model":"of_later"}})") == "of_later, 1.0K parameters");
}

TEST_CASE("settings: what differs from the default, and what auto may have chosen") {
  TemporaryFolder root;
  std::vector<RunReader> runs;
  runs.push_back(reader(root, run_line()));
  const nlohmann::json data = page_data(runs);
  std::map<std::string, std::string> differs;
  for (const auto& setting : data["runs"][0]["settings"]) {
    differs.emplace(setting["name"].get<std::string>(), setting["differs"].get<std::string>());
    if (setting["name"] == "max_skipped") CHECK(setting["default"] == 10);
  }
  CHECK(differs == std::map<std::string, std::string>{
                       {"seed", "yes"}, {"max_lr", "auto"}, {"max_skipped", "yes"}, {"grad_clip", ""}, {"of_old", ""}});
}

TEST_CASE("a sample cannot end the page's script, and bytes that are no text do not stop it") {
  const std::string text = json_text({{"text", "</script><b>\xff"}});
  CHECK_FALSE(contains(text, "<"));
  CHECK(contains(text, "\\u003c/script>"));
  const std::string page = page_html({{"runs", nlohmann::json::array()}}, "a<b", Refresh::none, 0);
  CHECK(contains(page, "<title>a&lt;b</title>"));
  CHECK_FALSE(contains(page, "@DATA@"));
}

TEST_CASE("a run's name is no mark of the template, whichever it is") {
  const nlohmann::json data = {{"runs", {{{"name", "@TITLE@"}}}}};
  const std::string plain = page_html(data, "plain", Refresh::none, 0);
  for (const char* mark : {"@DATA@", "@CSS@", "@PAGE_JS@", "@TITLE@", "@", "a@b@c"}) {
    const std::string page = page_html(data, mark, Refresh::none, 0);
    CHECK(contains(page, "<title>" + std::string(mark) + "</title>"));
    CHECK(page.size() - std::string(mark).size() == plain.size() - std::string("plain").size());
    CHECK(contains(page, "id=\"data\">{\"refresh\""));
    CHECK(contains(page, "\"name\":\"@TITLE@\""));
  }
}

TEST_CASE("a page stays below 2 MB, whatever the runs hold") {
  TemporaryFolder root;
  std::string lines = run_line("start", 0, 20'000);
  for (int step = 1; step <= 20'000; ++step) {
    lines += step_line(step, step, formatted("%.6f", 3 + std::sin(step)), step % 3 == 0 ? "skipped_loss_z" : "applied");
    if (step % 3 == 0)
      lines += line("event", step, step, "\"event\":\"skip\",\"text\":\"an explanation of some length, as they are\"");
    if (step % 50 == 0) lines += line("sample", step, step, "\"text\":\"" + std::string(3000, 'a') + "\"");
    if (step % 100 != 0) continue;
    for (int layer = 0; layer < 48; ++layer)
      for (const char* kind : {"qkv/act", "qkv/weight", "qkv/grad", "fc/act"})
        lines +=
            line("fp8_tensor", step, step,
                 formatted("\"tensor\":\"h.%d/%s\",\"amax\":%d.5,\"saturated\":0.01,\"flushed\":0", layer, kind, step));
  }
  std::vector<RunReader> runs;
  runs.push_back(reader(root, lines));
  CHECK(page_html(page_data(runs), "one", Refresh::none, 0).size() < 1'500'000);
  for (int copy = 0; copy < 5; ++copy) runs.emplace_back(root.path());
  CHECK(page_html(page_data(runs), "six", Refresh::none, 0).size() < 2'000'000);
}
