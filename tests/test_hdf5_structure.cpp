// What is looked at before libhdf5 is let near a file.
#include "engine/base/hdf5_structure.h"

#include <doctest/doctest.h>
#include <hdf5.h>

#include <cstring>
#include <filesystem>

#include "engine/base/files.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

std::optional<std::string> damage_of(const std::string& bytes) {
  const auto read = [&](int64_t offset, std::span<std::byte> out) {
    REQUIRE(offset >= 0);
    REQUIRE(static_cast<size_t>(offset) + out.size() <= bytes.size()); // it never asks for more
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  return hdf5_damage({read, static_cast<int64_t>(bytes.size())});
}

void put_attribute(hid_t object, const char* name, hid_t type, const void* value) {
  const hid_t space = H5Screate(H5S_SCALAR);
  const hid_t attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  CHECK(H5Awrite(attribute, type, value) >= 0);
  H5Aclose(attribute);
  H5Sclose(space);
}

void put_dataset(hid_t parent, const char* name, hid_t type, hsize_t count, bool write) {
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  const hid_t data = H5Dcreate2(parent, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  const std::vector<double> values(count, 1.0);
  if (write) CHECK(H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  H5Dclose(data);
  H5Sclose(space);
}

// Made by libhdf5 as it likes it: groups in groups, `members` datasets in one, all the types, attributes on everything.
std::string file_of(const TemporaryFolder& folder, int members) {
  const std::string path = folder / "made.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t group = H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t inner = H5Gcreate2(group, "inner", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t text = H5Tcopy(H5T_C_S1), long_text = H5Tcopy(H5T_C_S1);
  H5Tset_size(text, 5);
  H5Tset_size(long_text, H5T_VARIABLE);
  H5Tset_cset(long_text, H5T_CSET_UTF8);
  const int64_t number = -3;
  const char* const words = "of any length";
  for (const hid_t object : {file, group, inner}) {
    put_attribute(object, "number", H5T_STD_I64LE, &number);
    put_attribute(object, "float", H5T_IEEE_F32LE, &number);
    put_attribute(object, "text", text, "12345");
    put_attribute(object, "words", long_text, &words);
  }
  for (const hid_t type : {H5T_STD_U8LE, H5T_STD_I16LE, H5T_STD_U32LE, H5T_STD_U64LE, H5T_IEEE_F32LE, H5T_IEEE_F64LE})
    put_dataset(inner, ("type" + std::to_string(type)).c_str(), type, 3, true);
  put_dataset(inner, "never written", H5T_IEEE_F32LE, 5, false);
  for (int i = 0; i < members; ++i) put_dataset(group, ("member" + std::to_string(i)).c_str(), H5T_IEEE_F32LE, 2, true);
  H5Tclose(long_text);
  H5Tclose(text);
  H5Gclose(inner);
  H5Gclose(group);
  H5Fclose(file);
  return read_text_file(path);
}

} // namespace

TEST_CASE("what libhdf5 writes is plain, however many members a group has") {
  const TemporaryFolder folder;
  for (const int members : {0, 1, 9, 300, 1200}) { // 1,200: a tree of two levels
    CAPTURE(members);
    CHECK(damage_of(file_of(folder, members)).value_or("") == "");
  }
  CHECK(damage_of(file_of(folder, 3) + "and what is behind its end").value_or("") == "");
}

TEST_CASE("checkpoints of every version are plain") {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("tests/data/old_checkpoints")) {
    if (entry.path().extension() != ".h5") continue;
    CAPTURE(entry.path().string());
    CHECK(damage_of(read_text_file(entry.path().string())).value_or("") == "");
    ++files;
  }
  CHECK(files >= 4);
}

TEST_CASE("a file that ends early is not") {
  const TemporaryFolder folder;
  const std::string whole = file_of(folder, 2);
  for (size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK(damage_of(whole.substr(0, size)).has_value());
  }
}

// A damaged byte may be one that means nothing, or one of a value; the sizes, addresses and kinds are all looked at.
TEST_CASE("what is damaged is seen, or does not matter to who opens it") {
  const TemporaryFolder folder;
  const std::string whole = file_of(folder, 2), path = folder / "damaged.h5";
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  size_t seen = 0, tried = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char with : {'\x00', '\x01', '\x7F', '\xFF'}) {
      if (whole[at] == with) continue;
      std::string bytes = whole;
      bytes[at] = with;
      ++tried;
      if (damage_of(bytes)) {
        ++seen;
      } else if (at % 7 == 0) { // the library reads what passes; a sanitizer watches
        write_file_atomic(path, bytes);
        const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
        if (file < 0) continue;
        H5Ovisit(
            file, H5_INDEX_NAME, H5_ITER_NATIVE, [](hid_t, const char*, const H5O_info_t*, void*) { return 0; },
            nullptr);
        H5Fclose(file);
      }
    }
  }
  CHECK(seen > tried / 10);
}

TEST_CASE("two names for one thing are damage") {
  const TemporaryFolder folder;
  const std::string path = folder / "linked.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  put_dataset(file, "one", H5T_IEEE_F32LE, 4, true);
  H5Lcreate_hard(file, "one", file, "two", H5P_DEFAULT, H5P_DEFAULT);
  H5Fclose(file);
  CHECK(damage_of(read_text_file(path)).has_value());
}

TEST_CASE("other formats and other things than numbers and text are named") {
  const TemporaryFolder folder;
  const std::string path = folder / "other.h5";
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  H5Fclose(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access));
  H5Pclose(access);
  CHECK(damage_of(read_text_file(path)).value_or("").find("oldest format") != std::string::npos);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  put_dataset(file, "bits", H5T_STD_B8LE, 4, false);
  H5Fclose(file);
  CHECK(damage_of(read_text_file(path)).value_or("").find("neither numbers nor text") != std::string::npos);
  CHECK(damage_of(std::string(200, 'x')).value_or("").find("does not begin") != std::string::npos);
}
