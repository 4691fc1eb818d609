// The token that the user gives to all ranks of a job.
#pragma once

#include <optional>

#include "engine/network/secret.h"
#include "engine/rendezvous/launcher.h"

namespace gpt2 {

inline constexpr const char* kTokenHint = "export GPT2_JOB_TOKEN=$(openssl rand -hex 32), the same for all ranks";

// Key from GPT2_JOB_TOKEN, else from the file GPT2_JOB_TOKEN_FILE, and the name of the job: two jobs with one token
// have different keys. Trailing spaces and line breaks are ignored. nullopt: neither is set. Throws Error(usage) for a
// token below 16 bytes, and for a file that is not regular, not private or longer than 4 KiB.
std::optional<Key> key_of_token(const Launch& launch, const Environment& environment);

} // namespace gpt2
