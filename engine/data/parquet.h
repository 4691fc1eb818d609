// Parquet files through tools/parquet_to_jsonl.py, and how its failures reach whoever reads its lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/child_process.h"

namespace gpt2 {

// What prints a column as JSON lines. Throws Error(data) if the converter is not in the tree that we run from.
std::vector<std::string> parquet_command(const std::string& path, const std::string& column);

// Throws Error(data) unless the converter of `path` ended well: killed, or a mistake that it did not foresee.
void check_parquet_ending(const std::string& path, const ChildProcess::Ending& ending);

// The converter's last line says that it failed, and why: in a pipe, nobody hands us its exit code. Throws Error(data)
// if `line` is such a one.
void check_producer_is_well(std::string_view line);

} // namespace gpt2
