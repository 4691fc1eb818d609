// "Did you mean ...?"
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// The candidate that a slip of the finger would have turned into `word`; empty if none is near enough.
std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates);
// "did you mean CANDIDATE?", or `otherwise` if none is near enough.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates,
                         const std::string& otherwise = "");

} // namespace gpt2
