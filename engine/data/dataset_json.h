// How the entries of dataset.json stand in JSON; the journal of a data set in the making holds the same.
//
// A struct says its fields once, for both directions: visit_fields(entry, visit) calls visit("name", entry.name), and
// so on.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/data/dataset_manifest.h"

namespace gpt2 {

using OrderedJson = nlohmann::ordered_json; // keys stay in the order in which a person wants to read them

struct WriteFields {
  OrderedJson& json;
  void operator()(const char* name, const auto& value) const { json[name] = value; }
};
struct ReadFields { // throws nlohmann::json::exception for a field that is missing or of another kind
  const OrderedJson& json;
  void operator()(const char* name, auto& value) const { json.at(name).get_to(value); }
};

void to_json(OrderedJson& json, const ShardEntry& shard);
void from_json(const OrderedJson& json, ShardEntry& shard);
void to_json(OrderedJson& json, const SourceEntry& source);
void from_json(const OrderedJson& json, SourceEntry& source);

} // namespace gpt2
