// "Did you mean ...?"
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// The candidate that a slip of the finger would have turned into `word`; empty if none is near enough.
std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates);

} // namespace gpt2
