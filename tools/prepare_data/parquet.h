// Parquet files through tools/parquet_to_jsonl.py. One converter process prints about 150 MB/s, as much as four cores
// encode; several converters split a file by row groups.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tools/prepare_data/byte_stream.h"

namespace gpt2 {

// A column of a Parquet file as JSON lines, in the order of the file, printed by `converters` processes.
std::unique_ptr<ByteStream> open_parquet(const InputFile& file, const std::string& column, int converters,
                                         const StopCheck& stop);

// A converter that fails prints a last line with the reason: with `converter | prepare_data -` no exit code arrives.
// Throws Error(data) if `line` is that line.
void check_converter_line(std::string_view line);

} // namespace gpt2
