// Reading HDF5 files without libhdf5: what the library wrote comes back, and damage is an answer.
#include "engine/hdf5/reader.h"

#include <doctest/doctest.h>
#include <hdf5.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "engine/system/files.h"
#include "tests/contains.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

Hdf5Contents read(const std::string& bytes) {
  const auto read_at = [&](int64_t offset, std::span<std::byte> out) {
    if (offset < 0 || static_cast<size_t>(offset) + out.size() > bytes.size()) FAIL("it reads beyond the file");
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  return read_hdf5({read_at, static_cast<int64_t>(bytes.size())});
}

std::string damage_of(const std::string& bytes) { // "": none
  try {
    read(bytes);
    return "";
  } catch (const Hdf5Damage& damage) {
    CHECK(damage.what != "");
    return damage.what;
  }
}

// Elements [begin, begin + count) of a dataset.
template <class T>
std::vector<T> values(const std::string& bytes, const Hdf5Dataset& dataset, int64_t begin, int64_t count) {
  REQUIRE(dataset.type.size == sizeof(T));
  std::vector<T> out(static_cast<size_t>(count));
  auto* to = reinterpret_cast<char*>(out.data());
  for (const Hdf5Range& range : ranges_of(dataset, begin, count)) {
    REQUIRE(range.offset + range.bytes <= static_cast<int64_t>(bytes.size()));
    if (range.offset >= 0) std::memcpy(to, bytes.data() + range.offset, static_cast<size_t>(range.bytes));
    to += range.bytes;
  }
  CHECK(to == reinterpret_cast<char*>(out.data() + out.size()));
  return out;
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
  const std::vector<double> ones(count, 1.0);
  if (write) CHECK(H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, ones.data()) >= 0);
  H5Dclose(data);
  H5Sclose(space);
}

// Made by libhdf5 as it likes it: groups in groups, `members` datasets in one, all the types, attributes on everything.
std::string file_of(const TemporaryFolder& folder, int members, H5F_libver_t oldest = H5F_LIBVER_EARLIEST) {
  const std::string path = folder / "made.h5";
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_libver_bounds(access, oldest, H5F_LIBVER_LATEST);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
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
    put_dataset(inner, ("type" + std::to_string(H5Tget_class(type)) + std::to_string(H5Tget_size(type))).c_str(), type,
                3, true);
  put_dataset(inner, "never written", H5T_IEEE_F32LE, 5, false);
  for (int i = 0; i < members; ++i) put_dataset(group, ("member" + std::to_string(i)).c_str(), H5T_IEEE_F32LE, 2, true);
  H5Tclose(long_text);
  H5Tclose(text);
  H5Gclose(inner);
  H5Gclose(group);
  H5Fclose(file);
  H5Pclose(access);
  return read_text_file(path);
}

// A dataset of consecutive numbers in chunks; without `write`, none of them is in the file.
std::string chunked_file(const TemporaryFolder& folder, std::vector<hsize_t> shape, std::vector<hsize_t> chunk,
                         H5F_libver_t oldest, bool write = true, int compression = 0) {
  const std::string path = folder / "chunked.h5";
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS), plan = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_libver_bounds(access, oldest, H5F_LIBVER_LATEST);
  const auto rank = static_cast<int>(shape.size());
  H5Pset_chunk(plan, rank, chunk.data());
  if (compression > 0) H5Pset_deflate(plan, static_cast<unsigned>(compression));
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  const std::vector<hsize_t> most(shape.size(), H5S_UNLIMITED);
  const hid_t space = H5Screate_simple(rank, shape.data(), most.data());
  const hid_t data = H5Dcreate2(file, "values", H5T_STD_I32LE, space, H5P_DEFAULT, plan, H5P_DEFAULT);
  std::vector<int32_t> numbers(std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>()));
  std::iota(numbers.begin(), numbers.end(), 1);
  if (write) CHECK(H5Dwrite(data, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data()) >= 0);
  H5Dclose(data), H5Sclose(space), H5Fclose(file), H5Pclose(plan), H5Pclose(access);
  return read_text_file(path);
}

} // namespace

TEST_CASE("what libhdf5 writes is read, however many members a group has, in the old format and the newer") {
  const TemporaryFolder folder;
  for (const auto& [members, oldest] :
       std::vector<std::pair<int, H5F_libver_t>>{{0, H5F_LIBVER_EARLIEST},
                                                 {9, H5F_LIBVER_EARLIEST},
                                                 {300, H5F_LIBVER_EARLIEST},
                                                 {1200, H5F_LIBVER_EARLIEST}, // two levels
                                                 {3, H5F_LIBVER_V18},
                                                 {3, H5F_LIBVER_LATEST}}) {
    CAPTURE(members);
    CAPTURE(static_cast<int>(oldest));
    const std::string bytes = file_of(folder, members, oldest);
    const Hdf5Contents contents = read(bytes);
    CHECK(contents.datasets.size() == static_cast<size_t>(members) + 7);
    const Hdf5Attribute& number = contents.attributes.at("number");
    CHECK(to_integer(number.type, number.value) == -3);
    const Hdf5Attribute& text = contents.attributes.at("text");
    CHECK(text.type.kind == Hdf5Type::Kind::text);
    CHECK(std::memcmp(text.value.data(), "12345", 5) == 0);
    CHECK(contents.attributes.at("words").type.kind == Hdf5Type::Kind::other);
    const Hdf5Dataset& wide = contents.datasets.at("group/inner/type18");
    CHECK(wide.type == Hdf5Type{.kind = Hdf5Type::Kind::real, .is_signed = false, .size = 8});
    CHECK(values<double>(bytes, wide, 0, 3) == std::vector<double>(3, 1.0));
    CHECK(contents.datasets.at("group/inner/type02").type.is_signed);
    CHECK_FALSE(contents.datasets.at("group/inner/type04").type.is_signed);
    const Hdf5Dataset& unwritten = contents.datasets.at("group/inner/never written");
    CHECK(values<float>(bytes, unwritten, 0, 5) == std::vector<float>(5, 0.0f));
  }
  CHECK(damage_of(file_of(folder, 3) + "and what is behind its end") == "");
}

TEST_CASE("chunked datasets are read, of one dimension and of two, whole and in part") {
  const TemporaryFolder folder;
  using Shape = std::vector<hsize_t>;
  for (const auto& [shape, chunk] : std::vector<std::pair<Shape, Shape>>{
           {{1000}, {100}}, {{1001}, {7}}, {{3}, {8}}, {{10, 7}, {3, 4}}, {{5, 6, 7}, {2, 6, 3}}}) {
    for (const H5F_libver_t oldest : {H5F_LIBVER_EARLIEST, H5F_LIBVER_V18}) {
      const std::string bytes = chunked_file(folder, shape, chunk, oldest);
      const Hdf5Dataset dataset = read(bytes).datasets.at("values");
      std::vector<int32_t> expected(static_cast<size_t>(dataset.elements()));
      std::iota(expected.begin(), expected.end(), 1);
      CHECK(values<int32_t>(bytes, dataset, 0, dataset.elements()) == expected);
      for (int64_t begin = 0; begin + 3 <= dataset.elements(); ++begin)
        CHECK(values<int32_t>(bytes, dataset, begin, 3).front() == begin + 1);
    }
  }
  const std::string unwritten = chunked_file(folder, {10}, {4}, H5F_LIBVER_EARLIEST, false);
  CHECK(values<int32_t>(unwritten, read(unwritten).datasets.at("values"), 0, 10) == std::vector<int32_t>(10, 0));
}

TEST_CASE("files of every earlier version of a checkpoint are read") {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("tests/data/old_checkpoints")) {
    if (entry.path().extension() != ".h5") continue;
    CAPTURE(entry.path().string());
    CHECK(damage_of(read_text_file(entry.path().string())) == "");
    ++files;
  }
  CHECK(files >= 4);
}

// GPT2_H5PY_FILES: a folder of files that test_hdf5_h5py.py has written, NAME.h5 with numbers 0 to 999 in "tokens".
TEST_CASE("files of h5py") {
  const char* const folder = std::getenv("GPT2_H5PY_FILES");
  if (!folder) return;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    CAPTURE(entry.path().string());
    const std::string bytes = read_text_file(entry.path().string());
    const Hdf5Contents contents = read(bytes);
    std::vector<uint16_t> expected(1000);
    std::iota(expected.begin(), expected.end(), uint16_t{0});
    CHECK(values<uint16_t>(bytes, contents.datasets.at("tokens"), 0, 1000) == expected);
    CHECK(to_integer(contents.attributes.at("version").type, contents.attributes.at("version").value) == 1);
    CHECK(values<float>(bytes, contents.datasets.at("group/inner/matrix"), 4, 3) == std::vector<float>{4, 5, 6});
    ++files;
  }
  CHECK(files == 5);
}

TEST_CASE("a file that ends early is damaged") {
  const TemporaryFolder folder;
  for (const H5F_libver_t oldest : {H5F_LIBVER_EARLIEST, H5F_LIBVER_V18}) {
    const std::string whole = file_of(folder, 1, oldest);
    for (size_t size = 0; size < whole.size(); size += size < 200 ? 1 : 7) {
      CAPTURE(size);
      CHECK(damage_of(whole.substr(0, size)) != "");
    }
  }
}

// Any byte may be damaged: the reader answers, stays inside the file, and keeps every range inside it.
TEST_CASE("a damaged byte is refused or leads nowhere else") {
  const TemporaryFolder folder;
  for (const std::string& whole : {file_of(folder, 2), file_of(folder, 2, H5F_LIBVER_V18),
                                   chunked_file(folder, {100}, {9}, H5F_LIBVER_EARLIEST)}) {
    size_t refused = 0, tried = 0;
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const char with : {'\x00', '\x01', '\x7F', '\xFF'}) {
        if (whole[at] == with) continue;
        std::string bytes = whole;
        bytes[at] = with;
        ++tried;
        try {
          for (const auto& [name, dataset] : read(bytes).datasets) {
            for (const Hdf5Range& range : ranges_of(dataset, 0, std::min<int64_t>(dataset.elements(), 1000)))
              if (range.offset + range.bytes > static_cast<int64_t>(bytes.size())) FAIL("beyond the end: " << at);
          }
        } catch (const Hdf5Damage&) {
          ++refused;
        }
      }
    }
    CHECK(refused > tried / 20);
  }
}

TEST_CASE("two names for one thing are damage") {
  const TemporaryFolder folder;
  const std::string path = folder / "linked.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  put_dataset(file, "one", H5T_IEEE_F32LE, 4, true);
  H5Lcreate_hard(file, "one", file, "two", H5P_DEFAULT, H5P_DEFAULT);
  H5Fclose(file);
  CHECK(damage_of(read_text_file(path)) == "two objects have one address");
}

TEST_CASE("what is not supported is named, with what to do") {
  const TemporaryFolder folder;
  CHECK(contains(damage_of(file_of(folder, 20, H5F_LIBVER_V18)), "libver=\"earliest\""));
  CHECK(contains(damage_of(chunked_file(folder, {100}, {10}, H5F_LIBVER_LATEST)), "libver=\"earliest\""));
  CHECK(contains(damage_of(chunked_file(folder, {100}, {10}, H5F_LIBVER_EARLIEST, true, 1)), "without compression"));
  CHECK(contains(damage_of(std::string(200, 'x')), "does not begin"));
}
