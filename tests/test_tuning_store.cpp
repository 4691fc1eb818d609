#include "engine/system/tuning_store.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "engine/system/files.h"
#include "tests/contains.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

const TuningKey kProduct{"NVIDIA H200", "130100", "TN_768x256x768_bf16_bf16_bf16"};
const TuningKey kBatch{"NVIDIA H200", "batch_size", "L12 NH12 C768 of 64 32"};

} // namespace

TEST_CASE("what one process remembers the next one recalls; the folder is made") {
  const TemporaryFolder folder;
  const std::string path = folder / "not/yet/there/plans.txt";
  {
    TuningStore store(path);
    CHECK_FALSE(store.recall(kProduct));
    store.remember(kProduct, {"00ff", 12.345f});
    CHECK(store.recall(kProduct)->choice == "00ff");
  }
  const TuningStore store(path);
  REQUIRE(store.recall(kProduct));
  CHECK(store.recall(kProduct)->choice == "00ff");
  CHECK(store.recall(kProduct)->microseconds == doctest::Approx(12.35).epsilon(0.001));
  CHECK_FALSE(store.recall({"another GPU", kProduct.subject, kProduct.text}));
  CHECK_FALSE(store.recall({kProduct.device, "130200", kProduct.text}));
}

TEST_CASE("products and batch sizes share one file, and it is the only one") {
  const TemporaryFolder folder;
  const std::string path = folder / "plans.txt";
  TuningStore(path).remember(kProduct, {"00ff", 1});
  TuningStore(path).remember(kBatch, {"64", 0});
  const TuningStore store(path);
  CHECK(store.recall(kProduct)->choice == "00ff");
  CHECK(store.recall(kBatch)->choice == "64");
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
  CHECK(files == 1);
}

TEST_CASE("a file of plans from before batch sizes stood in it is read and kept") {
  const TemporaryFolder folder;
  const std::string path = folder / "plans.txt";
  const std::string before = "Another GPU\t1\tTN_1x1x1_bf16_bf16_bf16\t00\t1.00\n";
  write_file_atomic(path, before);
  TuningStore store(path);
  CHECK(store.recall({"Another GPU", "1", "TN_1x1x1_bf16_bf16_bf16"})->choice == "00");
  store.remember(kBatch, {"32", 0});
  CHECK(contains(read_text_file(path), before));
}

TEST_CASE("two processes that remember side by side lose nothing") {
  const TemporaryFolder folder;
  const std::string path = folder / "plans.txt";
  TuningStore first(path), second(path); // both have read an empty file
  first.remember(kProduct, {"00ff", 1});
  second.remember(kBatch, {"64", 0});
  const TuningStore store(path);
  CHECK(store.recall(kProduct));
  CHECK(store.recall(kBatch));
}

TEST_CASE("damaged lines are passed over") {
  const TuningTable notes = parse_tuning_table("\n\t\t\n" + to_text({{kProduct, {"aa", 2}}}) + "too\tfew\tcolumns\n" +
                                               std::string("\0\xFF\n", 3) + "a\tb\tc\td\te\tf\n");
  REQUIRE(notes.size() == 1);
  CHECK(notes.begin()->first == kProduct);
}

TEST_CASE("a file that cannot be read or written costs a warning, not the run") {
  const TemporaryFolder folder;
  TuningStore in_the_way(folder.path()); // a folder, where a file is expected
  in_the_way.remember(kProduct, {"aa", 1});
  CHECK(in_the_way.recall(kProduct)->choice == "aa");

  write_file_atomic(folder / "file", "");
  TuningStore under_a_file(folder / "file/plans.txt");
  under_a_file.remember(kProduct, {"bb", 1});
  CHECK(under_a_file.recall(kProduct)->choice == "bb");

  TuningStore nowhere("");
  nowhere.remember(kProduct, {"cc", 1});
  CHECK(nowhere.recall(kProduct)->choice == "cc");
}
