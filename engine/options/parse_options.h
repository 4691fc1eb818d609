// The command line and option files, read and written.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/options/options.h"

namespace gpt2 {

// A parsed command line and its --config.
struct CommandLine {
  Options options;
  std::set<std::string> given;         // set by a flag or --config; a resumed run takes the rest from its checkpoint
  std::set<std::string> typed = {};    // of those, set by a flag
  std::vector<std::string> notes = {}; // one line per flag of another trainer
  std::string manual = {};             // of bin/manual: the shell of --completion, or "man"
};

// Parses the command line and --config. Throws Error(usage), with "did you mean". Returns nullopt after --help,
// --version and the like, whose text it has printed to stdout.
std::optional<CommandLine> parse_options(int argc, const char* const* argv, const std::string& version);

// The options as TOML that --config reads back to the same values, without actions.
std::string to_toml(const Options& options);

// The same, with a comment where "auto" depends on the model: max_lr = "auto" # 0.0006 for gpt2
std::string to_explained_toml(const Options& options);

// Inverse of to_toml(), for the options that a checkpoint stores. `origin` names the text in errors. Throws
// Error(usage) for an unknown key or a bad value.
CommandLine from_toml(const std::string& text, const std::string& origin);

// The rule of precedence between two sources: the options given by `stronger` replace those of `options`, and reset
// options with overlapping meaning (--precision resets --use_fp8). From weakest to strongest the sources are defaults,
// a resumed checkpoint, --config, flags.
void override_options(Options& options, std::set<std::string>& given, const Options& stronger,
                      const std::set<std::string>& given_by_stronger);

// Throws Error(usage) for contradictory options.
void check_conflicts(const Options& options);

} // namespace gpt2
