#include "engine/rendezvous/job_token.h"

#include <sys/stat.h>

#include <cerrno>

#include "engine/base/error.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

constexpr size_t kShortestToken = 16; // bytes: a recorded handshake allows guessing shorter ones
constexpr size_t kLongestTokenFile = 4096;

std::string text_of_token_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_system_error(ExitCode::usage, "open", path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ExitCode::usage, "GPT2_JOB_TOKEN_FILE=" + path + " is not a regular file", kTokenHint);
  }
  if ((status.st_mode & 077) != 0) {
    throw Error(ExitCode::usage, "GPT2_JOB_TOKEN_FILE=" + path + ": other users may read or write the file",
                "chmod 600 " + path);
  }
  return read_text_file(path, ExitCode::usage, kLongestTokenFile);
}

} // namespace

std::optional<Key> key_of_token(const Launch& launch, const Environment& environment) {
  std::string token = text_of(environment, "GPT2_JOB_TOKEN"), source = "GPT2_JOB_TOKEN";
  if (token.empty()) {
    const std::string file = text_of(environment, "GPT2_JOB_TOKEN_FILE");
    if (file.empty()) return std::nullopt;
    token = text_of_token_file(file), source = "GPT2_JOB_TOKEN_FILE=" + file;
  }
  token.erase(token.find_last_not_of(" \r\n") + 1);
  if (token.size() < kShortestToken) {
    throw Error(ExitCode::usage,
                source + ": the token has fewer than " + std::to_string(kShortestToken) + " characters", kTokenHint);
  }
  return derived_key(derived_key({}, {"gpt2 token", token}), {launch.job});
}

} // namespace gpt2
