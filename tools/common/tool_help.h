// The help of the tools, printed as the trainer prints its own.
#pragma once

#include <cstddef>
#include <string>

namespace CLI {
class App;
}

namespace gpt2 {

std::string upper_case(std::string text); // ASCII

// What `app` does, its usage, then its arguments and flags by group, with defaults in brackets. `name`: of the program
// and its command, as "ckpt show".
std::string tool_help(const CLI::App& app, const std::string& name, size_t columns);

// "bin/ckpt show CHECKPOINT [OPTIONS]"
std::string tool_usage(const CLI::App& app, const std::string& name);

// Makes --help of `app` and of its commands print tool_help().
void use_tool_help(CLI::App& app);

} // namespace gpt2
