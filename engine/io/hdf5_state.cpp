#include "engine/io/hdf5_state.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "engine/base/hdf5_structure.h"

namespace gpt2 {
namespace {

constexpr size_t kLongestText = 64 << 20; // a larger size is damage, not text

// HDF5 stacks its complaints; the innermost is the cause. Those of system calls are long, and one part says something:
// "..., errno = 2, error message = 'No such file or directory', flags = 0, ..."
std::string hdf5_reason() {
  std::string reason;
  const auto keep_first = [](unsigned, const H5E_error2_t* error, void* result) -> herr_t {
    auto* text = static_cast<std::string*>(result);
    if (text->empty() && error->desc) *text = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason); // begins at the innermost
  const std::string marker = "error message = '";
  if (const size_t begin = reason.find(marker); begin != std::string::npos) {
    const size_t from = begin + marker.size();
    return reason.substr(from, reason.find('\'', from) - from);
  }
  return reason.empty() ? "it is damaged" : reason.substr(0, reason.find('\n'));
}

Hdf5Handle text_type(size_t length) {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, length > 0 ? length : 1); // HDF5 has no empty type: "" is one zero byte
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

Hdf5Handle scalar_space() { return {H5Screate(H5S_SCALAR), H5Sclose}; }

// Nobody writes a file that has its name, and many cluster file systems have no locks.
Hdf5Handle access_without_locks() {
  Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access, false, true);
  return access;
}

bool is_fixed_text(hid_t type) {
  return H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 && H5Tget_size(type) <= kLongestText;
}

// What a tensor can be: anything else is damage, and its product might not fit a number.
bool is_sane(std::span<const int64_t> shape) {
  constexpr int64_t kLargest = int64_t{1} << 31;
  return (shape.size() == 1 || shape.size() == 2) &&
         std::all_of(shape.begin(), shape.end(), [](int64_t extent) { return extent >= 0 && extent <= kLargest; });
}

std::vector<int64_t> extents_of(hid_t dataset) {
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
  std::vector<hsize_t> extents(static_cast<size_t>(std::max(0, H5Sget_simple_extent_ndims(space))));
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  return {extents.begin(), extents.end()};
}

// Before the library believes anything of it.
void refuse_damage(const Hdf5Bytes& file, const std::string& path, const std::string& hint) {
  if (const auto damage = hdf5_damage(file))
    throw Error(ExitCode::checkpoint, "cannot read " + path + ": it is damaged: " + *damage, hint);
}

hid_t open_unverified(const std::string& path, const std::string& hint) {
  if (std::filesystem::is_regular_file(path)) { // if not, the library says so
    const File file = File::open(path, ExitCode::checkpoint);
    refuse_damage(hdf5_bytes(file), path, hint);
  }
  return H5Fopen(path.c_str(), H5F_ACC_RDONLY, access_without_locks());
}

hid_t open_verified(const Hdf5ReadDriver& driver, const std::string& hint) {
  const VerifiedFile& file = driver.file();
  refuse_damage({[&](int64_t offset, std::span<std::byte> out) { file.read(offset, out); }, file.bytes()}, file.path(),
                hint);
  return H5Fopen(file.path().c_str(), H5F_ACC_RDONLY, driver.access());
}

std::string without_padding(std::string text) {
  text.erase(text.find_last_not_of('\0') + 1);
  return text;
}

} // namespace

// ---- the file ----

Hdf5File::Hdf5File(std::string path, Mode mode, std::string hint)
    : path_(std::move(path)),
      hint_(std::move(hint)),
      on_error_(mode == Mode::read ? ExitCode::checkpoint : ExitCode::disk),
      driver_(mode == Mode::create ? std::make_unique<Hdf5WriteDriver>() : nullptr),
      file_(driver_ ? H5Fcreate(path_.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, driver_->access())
                    : open_unverified(path_, hint_),
            H5Fclose) {
  if (driver_) check_written("");
  if (!file_.valid()) fail("");
}

Hdf5File::Hdf5File(VerifiedFile file, std::string hint)
    : path_(file.path()),
      hint_(std::move(hint)),
      on_error_(ExitCode::checkpoint),
      verified_(std::make_unique<Hdf5ReadDriver>(std::move(file))),
      file_(open_verified(*verified_, hint_), H5Fclose) {
  if (!file_.valid()) fail("");
}

void Hdf5File::check_read() const {
  if (verified_ && verified_->error()) throw Error(ExitCode::checkpoint, verified_->error()->what(), hint_);
}

void Hdf5File::fail(const std::string& name, std::string reason) const {
  check_read(); // the cause of all that follows
  if (reason.empty()) reason = hdf5_reason();
  const bool reading = on_error_ == ExitCode::checkpoint;
  throw Error(on_error_,
              std::string(reading ? "cannot read " : "cannot write ") + (name.empty() ? "" : name + " of ") + path_ +
                  ": " + reason,
              hint_);
}

void Hdf5File::check_written(const std::string& name) const {
  if (driver_->error_number() != 0) fail(name, std::strerror(driver_->error_number()));
}

void Hdf5File::close() {
  const bool closed = file_.close(); // writes what HDF5 still holds
  check_written("");
  if (!closed) fail("");
}

void Hdf5File::put_attribute(const std::string& name, hid_t type, const void* value) {
  const Hdf5Handle attribute(H5Acreate2(file_, name.c_str(), type, scalar_space(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  const bool written = attribute.valid() && H5Awrite(attribute, type, value) >= 0;
  check_written(name);
  if (!written) fail(name);
}

void Hdf5File::write_attribute(const std::string& name, int64_t value) {
  put_attribute(name, H5T_NATIVE_INT64, &value);
}

void Hdf5File::write_attribute(const std::string& name, const std::string& value) {
  put_attribute(name, text_type(value.size()), value.c_str()); // c_str: the zero byte that stands for ""
}

bool Hdf5File::has_attribute(const std::string& name) const {
  const bool there = H5Aexists(file_, name.c_str()) > 0;
  check_read();
  return there;
}

Hdf5Handle Hdf5File::open_attribute(const std::string& name) const {
  Hdf5Handle attribute(H5Aopen(file_, name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute.valid()) fail(name);
  const Hdf5Handle space(H5Aget_space(attribute), H5Sclose);
  if (H5Sget_simple_extent_npoints(space) != 1) fail(name, "it is not a single value");
  return attribute;
}

int64_t Hdf5File::read_int_attribute(const std::string& name) const {
  int64_t value = 0;
  if (H5Aread(open_attribute(name), H5T_NATIVE_INT64, &value) < 0) fail(name);
  return value;
}

std::string Hdf5File::read_text_attribute(const std::string& name) const {
  const Hdf5Handle attribute = open_attribute(name);
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  if (!is_fixed_text(type)) fail(name, "it is not a fixed-length text");
  std::string text(H5Tget_size(type), '\0');
  if (H5Aread(attribute, type, text.data()) < 0) fail(name);
  return without_padding(std::move(text));
}

// ---- writing ----

Hdf5Handle Hdf5StateWriter::write_dataset(const std::string& name, hid_t type, hid_t space, const void* values) {
  const std::string full_name = group_ + "/" + name;
  const Hdf5Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links, 1);
  Hdf5Handle dataset(H5Dcreate2(file_.id(), full_name.c_str(), type, space, links, H5P_DEFAULT, H5P_DEFAULT), H5Dclose);
  const bool written = dataset.valid() && H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0;
  file_.check_written(full_name);
  if (!written) file_.fail(full_name);
  return dataset;
}

void Hdf5StateWriter::write_floats(const std::string& name, std::span<const int64_t> shape,
                                   std::span<const float> values) {
  if (element_count(shape) != static_cast<int64_t>(values.size()))
    throw std::logic_error(name + ": the shape and the values differ");
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Hdf5Handle space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose);
  write_dataset(name, H5T_IEEE_F32LE, space, values.data());
}

void Hdf5StateWriter::write_piece(const std::string& name, std::span<const int64_t> shape, int64_t begin,
                                  std::span<const float> values) {
  if (begin < 0 || begin + static_cast<int64_t>(values.size()) > element_count(shape))
    throw std::logic_error(name + ": the piece is not inside its tensor");
  const hsize_t count = values.size(), dimensions = shape.size();
  const Hdf5Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const Hdf5Handle dataset = write_dataset(name, H5T_IEEE_F32LE, space, values.data());
  write_numbers(dataset, "shape", {H5Screate_simple(1, &dimensions, nullptr), H5Sclose}, shape.data());
  write_numbers(dataset, "begin", scalar_space(), &begin);
}

void Hdf5StateWriter::write_numbers(hid_t dataset, const std::string& name, const Hdf5Handle& space,
                                    const int64_t* values) {
  const Hdf5Handle attribute(H5Acreate2(dataset, name.c_str(), H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT),
                             H5Aclose);
  const bool written = attribute.valid() && H5Awrite(attribute, H5T_NATIVE_INT64, values) >= 0;
  file_.check_written(name);
  if (!written) file_.fail(name);
}

void Hdf5StateWriter::write_int(const std::string& name, int64_t value) {
  write_dataset(name, H5T_STD_I64LE, scalar_space(), &value);
}

void Hdf5StateWriter::write_real(const std::string& name, double value) {
  write_dataset(name, H5T_IEEE_F64LE, scalar_space(), &value);
}

void Hdf5StateWriter::write_text(const std::string& name, const std::string& value) {
  write_dataset(name, text_type(value.size()), scalar_space(), value.c_str());
}

// ---- reading ----

bool Hdf5StateReader::has(const std::string& name) const {
  const bool there = H5Lexists(file_.id(), full_name(name).c_str(), H5P_DEFAULT) > 0; // < 0: a group is not there
  file_.check_read();
  return there;
}

Hdf5Handle Hdf5StateReader::open_dataset(const std::string& name, H5T_class_t type_class) const {
  if (!has(name)) file_.fail(full_name(name), "it is not there");
  Hdf5Handle dataset(H5Dopen2(file_.id(), full_name(name).c_str(), H5P_DEFAULT), H5Dclose);
  if (!dataset.valid()) file_.fail(full_name(name));
  const Hdf5Handle type(H5Dget_type(dataset), H5Tclose);
  if (H5Tget_class(type) != type_class) file_.fail(full_name(name), "it is of another type");
  return dataset;
}

std::vector<int64_t> Hdf5StateReader::read_numbers(hid_t dataset, const std::string& name,
                                                   const char* attribute_name) const {
  const Hdf5Handle attribute(H5Aopen(dataset, attribute_name, H5P_DEFAULT), H5Aclose);
  const Hdf5Handle space(attribute.valid() ? H5Aget_space(attribute) : -1, H5Sclose);
  const hssize_t count = space.valid() ? H5Sget_simple_extent_npoints(space) : -1;
  if (count < 1 || count > H5S_MAX_RANK) file_.fail(full_name(name), std::string("it has no ") + attribute_name);
  std::vector<int64_t> values(static_cast<size_t>(count));
  if (H5Aread(attribute, H5T_NATIVE_INT64, values.data()) < 0) file_.fail(full_name(name));
  return values;
}

// Where its floats stand one after the other as this machine has them, and inside the file.
std::optional<int64_t> Hdf5StateReader::offset_of(hid_t dataset, int64_t count) const {
  const VerifiedFile* const file = file_.verified();
  const Hdf5Handle type(H5Dget_type(dataset), H5Tclose);
  if (!file || H5Tequal(type, H5T_NATIVE_FLOAT) <= 0) return std::nullopt;
  const haddr_t offset = H5Dget_offset(dataset); // HADDR_UNDEF of all that is not contiguous: beyond any end
  const auto bytes = static_cast<uint64_t>(count) * sizeof(float), end = static_cast<uint64_t>(file->bytes());
  if (bytes > end || offset > end - bytes) return std::nullopt;
  return static_cast<int64_t>(offset);
}

TensorPart Hdf5StateReader::part(const std::string& name) const {
  const Hdf5Handle dataset = open_dataset(name, H5T_FLOAT);
  const std::vector<int64_t> extents = extents_of(dataset);
  if (!is_sane(extents)) file_.fail(full_name(name), "it is neither a vector nor a matrix");
  TensorPart part{.shape = extents, .begin = 0, .count = element_count(extents)};
  part.offset = offset_of(dataset, part.count);
  const bool is_piece = H5Aexists(dataset, "begin") > 0;
  file_.check_read();
  if (!is_piece) return part;
  part.shape = read_numbers(dataset, name, "shape");
  part.begin = read_numbers(dataset, name, "begin").front();
  if (extents.size() != 1 || !is_sane(part.shape) || part.begin < 0 ||
      part.begin > element_count(part.shape) - part.count)
    file_.fail(full_name(name), "it is a piece that is not inside its tensor");
  return part;
}

std::vector<std::string> Hdf5StateReader::datasets() const {
  std::vector<std::string> all, datasets;
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* names) -> herr_t {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    return 0;
  };
  if (H5Lexists(file_.id(), group_.c_str(), H5P_DEFAULT) <= 0) return {}; // a rank that owns nothing
  if (H5Lvisit_by_name(file_.id(), group_.c_str(), H5_INDEX_NAME, H5_ITER_INC, collect, &all, H5P_DEFAULT) < 0)
    file_.fail(group_);
  for (const std::string& name : all) {
    const Hdf5Handle object(H5Oopen(file_.id(), full_name(name).c_str(), H5P_DEFAULT), H5Oclose);
    if (!object.valid()) file_.fail(full_name(name));
    if (H5Iget_type(object) == H5I_DATASET) datasets.push_back(name);
  }
  return datasets;
}

std::vector<std::string> Hdf5StateReader::tensors() const {
  std::vector<std::string> tensors;
  for (const std::string& name : datasets()) {
    const Hdf5Handle dataset(H5Dopen2(file_.id(), full_name(name).c_str(), H5P_DEFAULT), H5Dclose);
    const Hdf5Handle type(H5Dget_type(dataset), H5Tclose);
    if (H5Tget_class(type) == H5T_FLOAT) tensors.push_back(name);
  }
  return tensors;
}

std::vector<std::pair<std::string, std::string>> Hdf5StateReader::scalars() {
  std::vector<std::pair<std::string, std::string>> scalars;
  for (const std::string& name : datasets()) {
    const Hdf5Handle dataset(H5Dopen2(file_.id(), full_name(name).c_str(), H5P_DEFAULT), H5Dclose);
    const Hdf5Handle type(H5Dget_type(dataset), H5Tclose), space(H5Dget_space(dataset), H5Sclose);
    if (H5Sget_simple_extent_type(space) != H5S_SCALAR) continue;
    const H5T_class_t kind = H5Tget_class(type);
    char real[32];
    if (kind == H5T_FLOAT) std::snprintf(real, sizeof real, "%.17g", read_real(name));
    scalars.emplace_back(name, kind == H5T_STRING  ? read_text(name)
                               : kind == H5T_FLOAT ? std::string(real)
                                                   : std::to_string(read_int(name)));
  }
  return scalars;
}

void Hdf5StateReader::read_box(hid_t dataset, const std::string& name, std::span<const hsize_t> begin,
                               std::span<const hsize_t> extents, float* values) const {
  const hsize_t count = std::accumulate(extents.begin(), extents.end(), hsize_t{1}, std::multiplies<>());
  if (count == 0) return;
  const Hdf5Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
  if (H5Sselect_hyperslab(space, H5S_SELECT_SET, begin.data(), nullptr, extents.data(), nullptr) < 0 ||
      H5Dread(dataset, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, values) < 0)
    file_.fail(full_name(name));
}

void Hdf5StateReader::read_range(const std::string& name, int64_t begin, std::span<float> values) {
  const TensorPart there = part(name);
  const auto count = static_cast<int64_t>(values.size());
  if (begin < there.begin || begin + count > there.begin + there.count) {
    file_.fail(full_name(name), "it holds elements " + std::to_string(there.begin) + " to " +
                                    std::to_string(there.begin + there.count) + ", not " + std::to_string(begin) +
                                    " to " + std::to_string(begin + count));
  }
  const Hdf5Handle dataset = open_dataset(name, H5T_FLOAT);
  const std::vector<int64_t> extents = extents_of(dataset);
  if (extents.size() == 1) {
    const hsize_t from[] = {static_cast<hsize_t>(begin - there.begin)}, box[] = {values.size()};
    return read_box(dataset, name, from, box, values.data());
  }
  const auto columns = static_cast<hsize_t>(extents[1]);
  const hsize_t end = static_cast<hsize_t>(begin) + static_cast<hsize_t>(count);
  float* out = values.data();
  for (hsize_t at = static_cast<hsize_t>(begin); at < end;) {
    const hsize_t column = at % columns, left = end - at;
    const bool whole_rows = column == 0 && left >= columns;
    const hsize_t from[] = {at / columns, column};
    const hsize_t box[] = {whole_rows ? left / columns : 1, whole_rows ? columns : std::min(columns - column, left)};
    read_box(dataset, name, from, box, out);
    out += box[0] * box[1];
    at += box[0] * box[1];
  }
}

void Hdf5StateReader::read_floats(const std::string& name, std::span<float> values) {
  const Hdf5Handle dataset = open_dataset(name, H5T_FLOAT);
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
  const auto count = static_cast<int64_t>(H5Sget_simple_extent_npoints(space));
  if (count != static_cast<int64_t>(values.size())) {
    file_.fail(full_name(name), "it holds " + std::to_string(count) + " values, not " + std::to_string(values.size()));
  }
  if (H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) file_.fail(full_name(name));
}

void Hdf5StateReader::read_scalar(const std::string& name, H5T_class_t type_class, hid_t type, void* value) {
  const Hdf5Handle dataset = open_dataset(name, type_class);
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
  if (H5Sget_simple_extent_npoints(space) != 1) file_.fail(full_name(name), "it is not a single value");
  if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, value) < 0) file_.fail(full_name(name));
}

int64_t Hdf5StateReader::read_int(const std::string& name) {
  int64_t value = 0;
  read_scalar(name, H5T_INTEGER, H5T_NATIVE_INT64, &value);
  return value;
}

double Hdf5StateReader::read_real(const std::string& name) {
  double value = 0;
  read_scalar(name, H5T_FLOAT, H5T_NATIVE_DOUBLE, &value);
  return value;
}

std::string Hdf5StateReader::read_text(const std::string& name) {
  const Hdf5Handle type(H5Dget_type(open_dataset(name, H5T_STRING)), H5Tclose);
  if (!is_fixed_text(type)) file_.fail(full_name(name), "it is not a fixed-length text");
  std::string text(H5Tget_size(type), '\0');
  read_scalar(name, H5T_STRING, type, text.data());
  return without_padding(std::move(text));
}

} // namespace gpt2
