// Values that no run can have, in files whose hashes are right: each is refused with its name, and nothing is taken.
#include <doctest/doctest.h>

#include <limits>

#include "engine/hdf5/handle.h"
#include "tests/expect_error.h"
#include "tests/sharded_model.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

constexpr int64_t k2To62 = int64_t{1} << 62;

class Edited {
 public:
  Edited() { write_all(folder_, 1); }

  std::string put(const std::string& name, int64_t value) { return put(name, H5T_NATIVE_INT64, &value, 1, 0); }
  std::string put(const std::string& name, double value) { return put(name, H5T_NATIVE_DOUBLE, &value, 1, 0); }
  std::string put(const std::string& name, float value, hsize_t at) {
    return put(name, H5T_NATIVE_FLOAT, &value, 0, at);
  }
  const std::string& folder() const { return folder_; }

 private:
  // What reading the changed file says; "" if it is taken. The file is as before then.
  std::string put(const std::string& name, hid_t type, const void* value, bool scalar, hsize_t at) {
    const std::string path = folder_ + "/state.h5", before = read_file(path);
    {
      const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
      const Hdf5Handle dataset(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose);
      REQUIRE(dataset.valid());
      const Hdf5Handle space(H5Dget_space(dataset), H5Sclose), one(H5Screate(H5S_SCALAR), H5Sclose);
      hsize_t extents[2] = {1, 1};
      H5Sget_simple_extent_dims(space, extents, nullptr);
      const hsize_t place[] = {H5Sget_simple_extent_ndims(space) == 2 ? at / extents[1] : at, at % extents[1]};
      if (!scalar) REQUIRE(H5Sselect_elements(space, H5S_SELECT_SET, 1, place) >= 0);
      REQUIRE(H5Dwrite(dataset, type, one, space, H5P_DEFAULT, value) >= 0);
    }
    seal(folder_, 1000);
    std::string said;
    ShardedModel model(0, 1, true);
    try {
      load_checkpoint(folder_, model);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::checkpoint);
      CHECK(contains(error.hint(), "--resume"));
      said = error.what();
      CHECK(contains(said, folder_));
    }
    std::ofstream(path, std::ios::binary | std::ios::trunc) << before;
    seal(folder_, 1000);
    return said;
  }

  TemporaryFolder root_;
  std::string folder_ = root_ / "run/step_00001000";
};

} // namespace

TEST_CASE("counts that no run has are refused") {
  Edited checkpoint;
  for (const char* name : {"step", "loader_position", "tokens"}) {
    for (const int64_t value : {int64_t{-1}, int64_t{-3}, k2To62})
      CHECK(contains(checkpoint.put(std::string("/train/") + name, value),
                     std::string("the checkpoint's ") + name + " is " + std::to_string(value)));
  }
  CHECK(contains(checkpoint.put("/train/step", int64_t{5}), "last_val_step is 993 at step 5"));
  CHECK(contains(checkpoint.put("/train/last_val_step", int64_t{-2}), "last_val_step is -2"));
  CHECK(contains(checkpoint.put("/train/last_val_step", int64_t{1001}), "last_val_step is 1001 at step 1000"));
  CHECK(contains(checkpoint.put("/model/adam_step", int64_t{-1}), "adam_step is -1"));
  CHECK(contains(checkpoint.put("/model/adam_step", int64_t{1001}), "adam_step is 1001 at step 1000"));
  CHECK(checkpoint.put("/model/adam_step", int64_t{1000}) == "");
  CHECK(contains(checkpoint.put("/config/layers", (int64_t{1} << 32) + 2), "layers is 4294967298"));
}

TEST_CASE("a best loss that is no number is refused; a last one is none") {
  Edited checkpoint;
  for (const double loss : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1.0})
    CHECK(contains(checkpoint.put("/train/best_val_loss", loss), "best_val_loss is "));
  CHECK(checkpoint.put("/train/best_val_loss", 1e30) == "");
  CHECK(checkpoint.put("/train/last_val_loss", std::numeric_limits<double>::quiet_NaN()) == "");
}

TEST_CASE("guard and FP8 state out of range are refused") {
  Edited checkpoint;
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const auto& [name, value] : std::vector<std::pair<std::string, int64_t>>{{"guard/filled", -1},
                                                                                {"guard/filled", 129},
                                                                                {"guard/next", -1},
                                                                                {"guard/next", 128},
                                                                                {"guard/skipped_in_a_row", -1},
                                                                                {"guard/skipped_in_a_row", k2To62},
                                                                                {"fp8/applied_steps", -1},
                                                                                {"fp8/skipped_in_a_row", -1},
                                                                                {"fp8/calibration_due", 2}})
    CHECK(contains(checkpoint.put("/model/" + name, value), name + " is " + std::to_string(value)));
  for (const char* name : {"guard/losses", "guard/norms"})
    CHECK(contains(checkpoint.put(std::string("/model/") + name, nan, 127), "holds values that are not finite"));
  for (const float scale : {0.0f, -1.0f, nan, infinity})
    CHECK(contains(checkpoint.put("/model/fp8/scale", scale, 3), "fp8/scale holds "));
  for (const float amax : {-1.0f, nan, infinity})
    CHECK(contains(checkpoint.put("/model/fp8/amax_history", amax, 9), "fp8/amax_history holds "));
  CHECK(checkpoint.put("/model/fp8/amax_history", 0.0f, 9) == "");
}

TEST_CASE("a tensor with a value that is not finite, or a negative mean of squares, is refused by its name") {
  Edited checkpoint;
  for (const char* kind : {"params", "adam_m", "adam_v"}) {
    const std::string tensor = kind + std::string("/wte.weight");
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::infinity()})
      CHECK(contains(checkpoint.put("/model/" + tensor, value, 512 * 24 - 1),
                     tensor + " holds values that are not finite"));
  }
  CHECK(contains(checkpoint.put("/model/adam_v/ln_f.bias", -1e-30f, 0), "adam_v/ln_f.bias is a mean of squares"));
  CHECK(checkpoint.put("/model/adam_v/ln_f.bias", -0.0f, 0) == "");
  CHECK(checkpoint.put("/model/adam_m/ln_f.bias", -1.0f, 0) == "");
}
