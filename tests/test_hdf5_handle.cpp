#include "engine/hdf5/handle.h"

#include <doctest/doctest.h>

#include <utility>

using namespace gpt2;

namespace {

bool is_open(hid_t id) { return H5Iis_valid(id) > 0; }

int printed = 0; // by HDF5
herr_t count_print(hid_t, void*) { return ++printed, 0; }

} // namespace

TEST_CASE("a handle closes its identifier, and only once") {
  hid_t id = -1;
  {
    Hdf5Handle handle(H5Screate(H5S_SCALAR), H5Sclose);
    REQUIRE(handle.valid());
    id = handle;
    CHECK(is_open(id));
    const Hdf5Handle moved = std::move(handle);
    CHECK_FALSE(handle.valid());
    CHECK(static_cast<hid_t>(moved) == id);
  }
  CHECK_FALSE(is_open(id));

  Hdf5Handle closed_early(H5Screate(H5S_SCALAR), H5Sclose);
  id = closed_early;
  CHECK(closed_early.close());
  CHECK_FALSE(is_open(id));
  CHECK_FALSE(closed_early.valid());
}

TEST_CASE("a call that failed makes a handle that is not valid") {
  const Hdf5Silence silence;
  CHECK_FALSE(Hdf5Handle(H5Fopen("/no/such/file.h5", H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose).valid());
}

TEST_CASE("HDF5 says nothing during a silence, however deep, and speaks as before afterwards") {
  H5E_auto2_t old_print = nullptr;
  void* old_client = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &old_print, &old_client);
  H5Eset_auto2(H5E_DEFAULT, count_print, nullptr);
  const auto fail = [] { H5Fopen("/no/such/file.h5", H5F_ACC_RDONLY, H5P_DEFAULT); };
  fail();
  CHECK(printed == 1);
  {
    const Hdf5Silence outer;
    { const Hdf5Silence inner; }
    fail();
    CHECK(printed == 1);
  }
  fail();
  CHECK(printed == 2);
  H5Eset_auto2(H5E_DEFAULT, old_print, old_client);
}
