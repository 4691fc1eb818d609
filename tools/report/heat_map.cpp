#include "tools/report/heat_map.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "tools/report/downsampling.h"

namespace gpt2 {
namespace {

constexpr double kLowest = -12, kHighest = 8; // powers of ten
constexpr int kFirst = 2, kLast = 4095;       // codes

// "h.3/fc/act": layer "h.3", kind "fc/act"
std::pair<std::string, std::string> layer_and_kind(const std::string& tensor) {
  const size_t slash = tensor.find('/');
  return {tensor.substr(0, slash), slash == std::string::npos ? "" : tensor.substr(slash + 1)};
}

std::string codes(const std::vector<TensorRecords::Values>& values, float TensorRecords::Values::*field,
                  const std::vector<size_t>& column_of) {
  std::vector<double> worst(column_of.empty() ? 0 : column_of.back() + 1, std::nan(""));
  for (size_t i = 0; i < values.size(); ++i) {
    double& cell = worst[column_of[i]];
    cell = std::fmax(cell, static_cast<double>(values[i].*field));
  }
  std::string out;
  for (const double value : worst) out += heat_code(value);
  return out;
}

// No record is a `gelu_tail`.
bool has_no_tail(const std::vector<TensorRecords::Values>& values) {
  return std::ranges::all_of(
      values, [](const TensorRecords::Values& at) { return std::isnan(at.telling_flushed) == std::isnan(at.flushed); });
}

} // namespace

std::string heat_code(double value) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  int code = 0;
  if (value == 0) {
    code = 1;
  } else if (value > 0) { // not NaN
    const double share = (std::log10(value) - kLowest) / (kHighest - kLowest);
    code = kFirst + static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * (kLast - kFirst)));
  }
  return {kDigits[code / 64], kDigits[code % 64]};
}

nlohmann::json heat_map_json(const TensorRecords& records, size_t most_cells) {
  const auto with_tails =
      records.tensors.size() - static_cast<size_t>(std::ranges::count_if(records.values, has_no_tail));
  const size_t maps = std::max<size_t>(3 * records.tensors.size() + with_tails, 1);
  const int64_t bucket = bucket_steps(records.at, std::max<size_t>(most_cells / maps, 10));
  nlohmann::json out = {{"bucket", bucket},
                        {"step", nlohmann::json::array()},
                        {"tokens", nlohmann::json::array()},
                        {"seconds", nlohmann::json::array()},
                        {"layers", nlohmann::json::array()},
                        {"kinds", nlohmann::json::object()}};
  std::vector<size_t> column_of;
  for (size_t i = 0; i < records.at.size(); ++i) {
    const bool opens =
        i == 0 || bucket == 1 || bucket_of(records.at[i].step, bucket) != bucket_of(records.at[i - 1].step, bucket);
    column_of.push_back(i == 0 ? 0 : column_of.back() + (opens ? 1 : 0));
    if (opens) {
      for (const char* axis : {"step", "tokens", "seconds"}) out[axis].push_back(nullptr);
    }
    out["step"].back() = records.at[i].step;
    out["tokens"].back() = records.at[i].tokens;
    out["seconds"].back() = std::round(records.at[i].seconds * 10) / 10;
  }

  std::map<std::string, size_t> row_of;
  for (const std::string& tensor : records.tensors) {
    const std::string layer = layer_and_kind(tensor).first;
    if (row_of.try_emplace(layer, row_of.size()).second) out["layers"].push_back(layer);
  }
  for (size_t i = 0; i < records.tensors.size(); ++i) {
    const std::pair<std::string, std::string> named = layer_and_kind(records.tensors[i]);
    nlohmann::json& maps_of_kind = out["kinds"][named.second];
    const auto put = [&](const char* name, float TensorRecords::Values::*field) {
      nlohmann::json& rows = maps_of_kind[name];
      if (rows.is_null()) rows = std::vector<std::string>(row_of.size());
      rows[row_of.at(named.first)] = codes(records.values[i], field, column_of);
    };
    put("amax", &TensorRecords::Values::amax);
    put("saturated", &TensorRecords::Values::saturated);
    put("flushed", &TensorRecords::Values::flushed);
    if (!has_no_tail(records.values[i])) put("telling_flushed", &TensorRecords::Values::telling_flushed);
  }
  return out;
}

} // namespace gpt2
