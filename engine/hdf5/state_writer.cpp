#include "engine/hdf5/state_writer.h"

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

// The innermost error of HDF5's error stack.
std::string hdf5_reason() {
  std::string reason;
  const auto keep_first = [](unsigned, const H5E_error2_t* error, void* result) -> herr_t {
    auto* text = static_cast<std::string*>(result);
    if (text->empty() && error->desc) *text = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason); // starts at the innermost
  return reason.empty() ? "HDF5 gives no reason" : reason.substr(0, reason.find('\n'));
}

Hdf5Handle text_type(size_t length) {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, length > 0 ? length : 1); // HDF5 has no empty type: "" is one zero byte
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

Hdf5Handle scalar_space() { return {H5Screate(H5S_SCALAR), H5Sclose}; }

Hdf5Handle space_of(std::span<const int64_t> shape) {
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return {H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose};
}

bool put_attribute(hid_t object, const std::string& name, hid_t type, hid_t space, const void* value) {
  const Hdf5Handle attribute(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  return attribute.valid() && H5Awrite(attribute, type, value) >= 0;
}

} // namespace

Hdf5NewFile::Hdf5NewFile(std::string path, std::string hint)
    : path_(std::move(path)),
      hint_(std::move(hint)),
      file_(H5Fcreate(path_.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, driver_.access()), H5Fclose) {
  check("", file_.valid());
}

void Hdf5NewFile::check(const std::string& name, bool written) const {
  if (written && driver_.error_number() == 0) return;
  if (driver_.error_number() == 0 && errno == ENOMEM) throw std::bad_alloc(); // errno was 0 at the start of Hdf5Silence
  const std::string reason = driver_.error_number() != 0 ? std::strerror(driver_.error_number()) : hdf5_reason();
  throw Error(ExitCode::disk, "cannot write " + (name.empty() ? "" : name + " of ") + path_ + ": " + reason, hint_);
}

void Hdf5NewFile::close() {
  const bool closed = file_.close(); // flushes
  check("", closed);
}

void Hdf5NewFile::write_attribute(const std::string& name, int64_t value) {
  check(name, put_attribute(file_, name, H5T_NATIVE_INT64, scalar_space(), &value));
}

void Hdf5NewFile::write_attribute(const std::string& name, const std::string& value) {
  // c_str(): "" is written as one zero byte
  check(name, put_attribute(file_, name, text_type(value.size()), scalar_space(), value.c_str()));
}

Hdf5Handle Hdf5StateWriter::write_dataset(const std::string& name, hid_t type, hid_t space, const void* values) {
  const std::string full_name = group_ + "/" + name;
  const Hdf5Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links, 1);
  Hdf5Handle dataset(H5Dcreate2(file_.id(), full_name.c_str(), type, space, links, H5P_DEFAULT, H5P_DEFAULT), H5Dclose);
  file_.check(full_name, dataset.valid() && H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
  return dataset;
}

void Hdf5StateWriter::write_floats(const std::string& name, std::span<const int64_t> shape,
                                   std::span<const float> values) {
  if (element_count(shape) != static_cast<int64_t>(values.size()))
    throw std::logic_error(name + ": the shape and the values differ");
  write_dataset(name, H5T_IEEE_F32LE, space_of(shape), values.data());
}

void Hdf5StateWriter::write_slice(const std::string& name, std::span<const int64_t> shape, int64_t begin,
                                  std::span<const float> values) {
  const auto count = static_cast<int64_t>(values.size()), dimensions = static_cast<int64_t>(shape.size());
  if (begin < 0 || begin + count > element_count(shape))
    throw std::logic_error(name + ": the segment is not inside its tensor");
  const Hdf5Handle dataset = write_dataset(name, H5T_IEEE_F32LE, space_of({&count, 1}), values.data());
  file_.check("shape", put_attribute(dataset, "shape", H5T_STD_I64LE, space_of({&dimensions, 1}), shape.data()));
  file_.check("begin", put_attribute(dataset, "begin", H5T_STD_I64LE, scalar_space(), &begin));
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

} // namespace gpt2
