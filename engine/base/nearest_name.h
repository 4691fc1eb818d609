#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// The candidate within a typing error of `word`; "" if none.
std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates);
// "did you mean CANDIDATE?", or `otherwise` if none.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates,
                         const std::string& otherwise = "");

} // namespace gpt2
