// Lists of blocks as a user types them: "first,last,3-5".
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// Numbers count from 0; the result is sorted, each block once. An empty list is no block. Throws Error(usage) that
// names `flag` for a word that is no block and for a block that a model of `layers` has not.
std::vector<int> parse_layer_list(const std::string& flag, const std::string& list, int layers);

} // namespace gpt2
