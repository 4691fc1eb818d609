// The bytes of a text file as they were before it was compressed: a file, standard input, gzip, zstd, or what the
// converter prints of a Parquet file. A stream that ends too early or is damaged is an Error(data) with the file's
// name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tools/prepare_data/input_files.h"

namespace gpt2 {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `out`, or less of it at the end: 0 means that all has been read and was whole.
  virtual size_t read(std::span<char> out) = 0;
  virtual int64_t bytes_of_file() const = 0; // read so far of what lies on the disk
  virtual void skip(int64_t bytes);          // by reading, where nothing faster will do
};

using AskStop = std::function<bool()>; // may be empty: nobody stops

// Returns when there is something to read, or the end. Throws Stopped if `stop` says so first: asked ten times a
// second.
void wait_for_bytes(int descriptor, const AskStop& stop);

// `field`: of a Parquet file, the column that is printed as JSON lines, by `parquet_readers` processes. A pipe that
// keeps us waiting is left when `stop` says so, by Stopped.
std::unique_ptr<ByteStream> open_stream(const InputFile& file, const std::string& field, int parquet_readers,
                                        const AskStop& stop = {});

} // namespace gpt2
