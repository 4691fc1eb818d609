// The decompressed bytes of an input: a plain file, standard input, gzip, zstd, or a Parquet column as JSON lines. A
// truncated or damaged stream throws Error(data) with the file's name.
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
  // Fills `out`, or a part of it at the end. 0: end of a complete stream.
  virtual size_t read(std::span<char> out) = 0;
  virtual int64_t bytes_of_file() const = 0; // compressed bytes read so far
  virtual void skip(int64_t bytes);          // reads and discards, unless the stream can seek
};

using StopCheck = std::function<bool()>; // empty: never stop

// Waits until the descriptor is readable or at its end. Polls `stop` ten times a second; throws Stopped.
void wait_for_bytes(int descriptor, const StopCheck& stop);

// `field`: the column of a Parquet file, converted by `parquet_readers` processes. Reading a slow pipe throws Stopped
// when `stop` returns true.
std::unique_ptr<ByteStream> open_stream(const InputFile& file, const std::string& field, int parquet_readers,
                                        const StopCheck& stop = {});

} // namespace gpt2
