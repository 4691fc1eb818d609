// How the entries of dataset.json stand in JSON; the journal of a data set in the making holds the same.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/data/dataset_manifest.h"

namespace gpt2 {

void to_json(nlohmann::ordered_json& json, const ShardEntry& shard);
void from_json(const nlohmann::ordered_json& json, ShardEntry& shard);
void to_json(nlohmann::ordered_json& json, const SourceEntry& source);
void from_json(const nlohmann::ordered_json& json, SourceEntry& source);

} // namespace gpt2
