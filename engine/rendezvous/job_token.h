// The token that a user gives the ranks of a job.
#pragma once

#include <optional>

#include "engine/network/secret.h"
#include "engine/rendezvous/launcher.h"

namespace gpt2 {

// GPT2_JOB_TOKEN, else the text in the file GPT2_JOB_TOKEN_FILE, bound to the job: two jobs with one token have
// different keys. Spaces and line breaks at the end do not count. Nothing without either. Throws Error(usage) for a
// token that is too short, and for a file that is not regular, not private or longer than 4 KiB.
std::optional<Key> key_of_token(const Launch& launch, const Environment& environment);

} // namespace gpt2
