// JSON of the entries of dataset.json; the journal of bin/prepare_data stores the same entries.
//
// Each struct lists its fields once, for reading and writing: visit_shard(entry, visit) calls visit("name", entry.name)
// and so on.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/data/dataset_manifest.h"

namespace gpt2 {

using OrderedJson = nlohmann::ordered_json; // keeps the order of keys

struct WriteFields {
  OrderedJson& json;
  void operator()(const char* name, const auto& value) const { json[name] = value; }
};
struct ReadFields { // throws nlohmann::json::exception for a missing field or another type
  const OrderedJson& json;
  void operator()(const char* name, auto& value) const { json.at(name).get_to(value); }
};

void to_json(OrderedJson& json, const ShardEntry& shard);
void from_json(const OrderedJson& json, ShardEntry& shard);
void to_json(OrderedJson& json, const SourceEntry& source);
void from_json(const OrderedJson& json, SourceEntry& source);

} // namespace gpt2
