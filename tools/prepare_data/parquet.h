// Parquet files through tools/parquet_to_jsonl.py, and how its failures reach whoever reads its lines. One converter
// prints about 150 MB/s, what four cores encode; several share a file by its row groups.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tools/prepare_data/byte_stream.h"

namespace gpt2 {

// A column of a Parquet file as JSON lines, in the order of the file, printed by `converters` processes.
std::unique_ptr<ByteStream> open_parquet(const InputFile& file, const std::string& column, int converters,
                                         const AskStop& stop);

// The converter's last line says that it failed, and why: in a pipe, nobody hands us its exit code. Throws Error(data)
// if `line` is such a one.
void check_producer_is_well(std::string_view line);

} // namespace gpt2
