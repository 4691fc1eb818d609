#include "engine/run/multi_rank.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string_view>

#include "engine/base/divisors.h"
#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/options/option_fields.h"

namespace gpt2 {
namespace {

// Paths may differ between machines that hold the same data.
constexpr std::string_view kPaths[] = {"data_dir", "train_data", "val_data", "tokenizer", "plan_cache"};

// "name\tvalue\n": neither holds a tab or a line break.
std::string to_text(const std::vector<Fact>& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += name + "\t" + value + "\n";
  return text;
}

std::map<std::string, std::string> from_text(const std::string& text) {
  std::map<std::string, std::string> facts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) { // a line without a tab is a name without a value
    const size_t tab = std::min(line.find('\t'), line.size());
    facts[line.substr(0, tab)] = line.substr(std::min(tab + 1, line.size()));
  }
  return facts;
}

std::vector<Fact> facts_of(const Options& options, const Backend& backend, const Dataset& train,
                           const Dataset* validation) {
  std::vector<Fact> facts = {{"version", GPT2_VERSION}, {"device and libraries", backend.versions()}};
  for (const OptionField& field : option_fields()) {
    if (!field.not_stored && std::ranges::count(kPaths, field.name) == 0)
      facts.push_back({"--" + field.name, field.toml(options)});
  }
  facts.push_back({"training data", train.fingerprint()});
  facts.push_back({"validation data", validation ? validation->fingerprint() : "none"});
  return facts;
}

} // namespace

void check_agreement(RankGroup& group, const std::vector<Fact>& mine) {
  if (group.alone()) return;
  const std::vector<std::string> all = group.all_gather(to_text(mine));
  const std::map<std::string, std::string> of_rank_0 = from_text(all[0]);
  for (int rank = 1; rank < group.ranks(); ++rank) {
    for (const auto& [name, value] : from_text(all[static_cast<size_t>(rank)])) {
      const auto found = of_rank_0.find(name);
      const std::string there = found == of_rank_0.end() ? "nothing" : found->second;
      if (value == there) continue;
      throw AgreedError(ExitCode::communication,
                        "the ranks do not run the same: " + name + " is " + value + " on " + group.name_of(rank) +
                            " and " + there + " on rank 0",
                        "start every rank with the same program, flags and data");
    }
  }
}

Options fitted_to_ranks(const RunSettings& settings, int ranks) {
  Options options = settings.options;
  const bool from_checkpoint = settings.resumed && !settings.given.contains("batch_size");
  if (options.batch_ramp.empty() && options.target_batch_size == 0) return options; // auto
  const int sequences = ramp_of(options).common_divisor();
  if (!from_checkpoint || options.batch_size == 0 || sequences % ranks != 0) return options;
  options.batch_size = largest_divisor_at_most(sequences / ranks, options.batch_size);
  return options;
}

RunPlan agree_on_plan(const RunSettings& settings, const GPT2Config& config, Precision precision, const Dataset& train,
                      const Dataset* validation, Backend& backend, RankGroup& group) {
  Options options = fitted_to_ranks(settings, group.ranks());
  const auto plan_of = [&] { return make_plan(options, config, precision, train.sequences(), backend, group.ranks()); };
  if (group.alone()) return plan_of();
  std::vector<Fact> facts = facts_of(options, backend, train, validation);
  facts.push_back({"precision", to_string(precision)}); // a rank may have fallen back
  check_agreement(group, facts);
  if (group.leads()) {
    const auto busy = group.busy(); // planning may time batch sizes
    options.batch_size = plan_of().batch.batch_size;
  }
  options.batch_size = std::atoi(group.broadcast(std::to_string(options.batch_size)).c_str());
  return plan_of();
}

std::vector<Fp8TensorStats> average_over_ranks(RankGroup& group, std::vector<Fp8TensorStats> mine) {
  if (group.alone()) return mine;
  std::vector<double> shares;
  for (const Fp8TensorStats& tensor : mine) shares.insert(shares.end(), {tensor.saturated, tensor.flushed});
  group.sum(shares);
  for (size_t i = 0; i < mine.size(); ++i) {
    mine[i].saturated = shares[2 * i] / group.ranks();
    mine[i].flushed = shares[2 * i + 1] / group.ranks();
  }
  return mine;
}

std::optional<std::string> StragglerWatch::check(RankGroup& group, double own_seconds) {
  if (group.alone()) return std::nullopt;
  const std::vector<std::string> all = group.gather(std::to_string(own_seconds));
  if (all.empty()) return std::nullopt;
  std::vector<double> seconds;
  for (const std::string& text : all) seconds.push_back(std::strtod(text.c_str(), nullptr));
  const int slowest = static_cast<int>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
  const double longest = seconds[static_cast<size_t>(slowest)];
  std::nth_element(seconds.begin(), seconds.begin() + (all.size() - 1) / 2, seconds.end());
  const double median = seconds[(all.size() - 1) / 2];
  if (longest < kSlow * median) {
    slowest_ = -1;
    return std::nullopt;
  }
  times_ = slowest == slowest_ ? times_ + 1 : 1;
  slowest_ = slowest;
  if (times_ < kPatience || reported_ == slowest) return std::nullopt;
  reported_ = slowest;
  return group.name_of(slowest) +
         formatted(" takes %.0f ms for its part of a step, the median rank %.0f ms: the other ranks wait for it",
                   1e3 * longest, 1e3 * median);
}

} // namespace gpt2
