// The CPU engine under Muon: what it updates, saves and shares among ranks.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/cpu/gpt2_cpu.h"
#include "engine/model/muon_layout.h"
#include "tests/ranks_testing.h"
#include "tests/tiny_gpt2.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

// The largest difference, relative to the largest value.
double difference(const std::vector<float>& got, const std::vector<float>& want) {
  double largest = 0, most = 0;
  if (got.size() != want.size()) return INFINITY;
  for (size_t i = 0; i < got.size(); ++i) {
    most = std::max(most, std::fabs(static_cast<double>(got[i]) - want[i]));
    largest = std::max(largest, std::fabs(static_cast<double>(want[i])));
  }
  return most == 0 ? 0 : most / largest;
}

UpdateSettings muon_settings(float lr) {
  UpdateSettings update = settings(lr);
  update.muon.lr = lr;
  return update;
}

ModelOptions muon_options() {
  ModelOptions options = tiny_options();
  options.optimizer = Optimizer::muon;
  return options;
}

} // namespace

TEST_CASE("every element of a block's matrices is updated by one rank, and every other has a second moment") {
  const GPT2Config config = tiny_options().config;
  for (const int ranks : {1, 2, 3, 5}) {
    const ParameterTable table(config, ranks, Optimizer::muon);
    std::vector<int> updates(static_cast<size_t>(table.size())), second(updates.size());
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<OwnedSlice> slices = table.shard(rank);
      int64_t filled = 0;
      for (const OwnedSlice& slice : second_moment_slices(table, slices)) {
        CHECK(slice.at == filled);
        CHECK(slice.count % kDecayGranule == 0);
        filled += slice.count;
        for (int64_t i = 0; i < slice.count; ++i) ++second[static_cast<size_t>(slice.offset + i)];
      }
      for (const MuonGroup& group : muon_groups(table, slices, ranks, rank)) {
        CHECK(group.per_rank * ranks >= static_cast<int64_t>(group.matrices.size()));
        for (const MuonSegment& segment : group.segments) {
          CHECK(segment.compact == compact_offset(slices, segment.flat));
          const auto matrix = static_cast<size_t>(segment.stacked / group.elements());
          CHECK(segment.flat == group.matrices[matrix] + segment.stacked % group.elements());
          for (int64_t i = 0; i < segment.count; ++i) ++updates[static_cast<size_t>(segment.flat + i)];
        }
      }
    }
    int64_t matrices = 0;
    for (const ParameterTensor& tensor : table.tensors()) {
      const bool muon = tensor.cols > 0 && tensor.bucket != ParameterTable::kEmbeddings;
      matrices += muon;
      CHECK(tensor.muon == muon);
      const auto all_are = [&](const std::vector<int>& counts, int expected) {
        return std::all_of(counts.begin() + tensor.offset, counts.begin() + tensor.offset + tensor.count(),
                           [&](int count) { return count == expected; });
      };
      CHECK(all_are(updates, muon ? 1 : 0));
      CHECK(all_are(second, muon ? 0 : 1));
    }
    CHECK(matrices == 4 * config.layers);
  }
}

TEST_CASE("a model learns under Muon, keeps one moment of its matrices, and continues a checkpoint bit for bit") {
  const OneThread one;
  const auto model = make_cpu_model(muon_options());
  const TokenBatch batch(4, 5, 11, 3);
  const auto train = [&](Model& trained, int steps) {
    float loss = 0;
    for (int i = 0; i < steps; ++i) {
      trained.micro_step(batch.view, 0, 1);
      trained.update(muon_settings(1e-2f));
      loss = trained.step_result().loss;
    }
    return loss;
  };
  const float first = train(*model, 1);
  MemoryState middle = saved(*model);
  const float last = train(*model, 20);
  CHECK(last < first - 0.5f);
  CHECK(middle.has("muon_m/h.0.attn.c_attn.weight"));
  CHECK(middle.has("adam_v/wte.weight"));
  CHECK_FALSE(middle.has("adam_v/h.0.attn.c_attn.weight"));
  CHECK_FALSE(middle.has("adam_m/h.0.attn.c_attn.weight"));

  const auto resumed = make_cpu_model(muon_options());
  resumed->load_state(middle);
  CHECK(train(*resumed, 20) == last);
  CHECK(saved(*resumed) == saved(*model));
}

TEST_CASE("a skipped step leaves Muon's weights and momentum as they were") {
  const OneThread one;
  const auto model = make_cpu_model(muon_options());
  const TokenBatch batch(4, 5, 11, 3);
  model->micro_step(batch.view, 0, 1);
  model->update(muon_settings(1e-2f));
  const MemoryState before = saved(*model);
  UpdateSettings update = muon_settings(1e-2f);
  const std::vector<int32_t> ignored(batch.view.targets.size(), kIgnoredTarget);
  Batch nothing = batch.view;
  nothing.targets = ignored; // no target: loss and norm are not finite
  model->micro_step(nothing, 0, 1);
  model->update(update);
  CHECK(model->step_result().verdict == Verdict::skipped_nonfinite);
  CHECK(saved(*model).floats == before.floats);
}

TEST_CASE("a checkpoint of the other optimizer gives its weights, and the moments start anew") {
  const OneThread one;
  for (const Optimizer before : {Optimizer::adamw, Optimizer::muon}) {
    ModelOptions old_options = muon_options(), new_options = muon_options();
    old_options.optimizer = before;
    new_options.optimizer = before == Optimizer::muon ? Optimizer::adamw : Optimizer::muon;
    const auto old_model = make_cpu_model(old_options), model = make_cpu_model(new_options);
    const TokenBatch batch(4, 5, 11, 3);
    for (Model* const trained : {old_model.get(), model.get()}) {
      trained->micro_step(batch.view, 0, 1);
      trained->update(muon_settings(1e-2f));
    }
    MemoryState state = saved(*old_model);
    model->load_state(state);
    CHECK(same_parameters(*model, *old_model));
    const MemoryState loaded = saved(*model);
    CHECK(loaded.ints.at("adam_step") == 0);
    for (const auto& [name, tensor] : loaded.floats) {
      if (name.starts_with("params/") || name.starts_with("guard/")) continue;
      CAPTURE(name);
      CHECK(std::ranges::all_of(tensor.values, [](float value) { return value == 0; }));
    }
  }
}

TEST_CASE("1, 2 and 4 ranks train alike under Muon, with a share of the state each, and each other's checkpoints") {
  const OneThread one;
  constexpr int kSteps = 4, kB = 4, kT = 5;
  const auto train = [&](Model& model, int rank, int ranks, int first, std::vector<float>& losses) {
    for (int step = first; step < first + kSteps; ++step) {
      const TokenBatch all(kB, kT, 11, static_cast<uint64_t>(step));
      const int rows = kB / ranks, begin = rank * rows * kT, count = rows * kT;
      model.micro_step({.batch_size = rows,
                        .seq_len = kT,
                        .inputs = all.view.inputs.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
                        .targets = all.view.targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(count))},
                       0, 1);
      model.update(muon_settings(1e-2f));
      losses.push_back(model.step_result().loss);
    }
  };
  std::vector<float> expected;
  const auto alone = make_cpu_model(muon_options());
  train(*alone, 0, 1, 0, expected);
  MemoryState middle = saved(*alone);
  train(*alone, 0, 1, kSteps, expected);
  MemoryState whole_state = saved(*alone);

  for (const int ranks : {2, 4}) {
    for (const bool sharded : {true, false}) {
      CAPTURE(ranks);
      CAPTURE(sharded);
      std::vector<MemoryState> parts(static_cast<size_t>(ranks));
      std::vector<std::vector<float>> losses(parts.size());
      std::vector<int64_t> moments(parts.size());
      run_group_without_error(ranks, [&](RankGroup& group) {
        const auto rank = static_cast<size_t>(group.rank());
        const SharingOptions sharing{.shard_optimizer = sharded};
        const auto model = make_cpu_model(muon_options(), make_socket_communicator(group), sharing);
        MemoryState start = middle; // of one rank
        model->load_state(start);
        train(*model, group.rank(), ranks, kSteps, losses[rank]);
        parts[rank] = saved(*model);
        for (const MemoryLine& line : cpu_model_memory(muon_options(), ranks, sharing))
          if (line.purpose == "moments") moments[rank] = line.bytes;
      });
      MemoryState together = parts[0]; // every rank's segments
      for (const MemoryState& part : parts) {
        for (const auto& [name, tensor] : part.floats) {
          if (name.starts_with("guard/")) continue;
          std::vector<float>& values = together.floats[name].values;
          values.resize(tensor.values.size());
          for (size_t i = 0; i < values.size(); ++i)
            if (tensor.values[i] != 0) values[i] = tensor.values[i];
        }
      }
      for (const auto& [name, tensor] : whole_state.floats) {
        CAPTURE(name);
        CHECK(difference(together.floats[name].values, tensor.values) < 2e-3);
      }
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        for (size_t i = 0; i < kSteps; ++i)
          CHECK(losses[rank][i] == doctest::Approx(expected[kSteps + i]).epsilon(1e-5));
      }
      int64_t of_one = 0;
      for (const MemoryLine& line : cpu_model_memory(muon_options(), 1, {}))
        if (line.purpose == "moments") of_one = line.bytes;
      if (sharded) CHECK(moments[0] < of_one * 1.5 / ranks);
    }
  }
}

TEST_CASE("projections can start at zero, and everything else as it would") {
  ModelOptions options = tiny_options();
  const auto normal = make_cpu_model(options);
  options.init_projections = InitProjections::zero;
  const auto zero = make_cpu_model(options);
  for (const ParameterTensor& tensor : zero->parameters().tensors()) {
    const std::vector<float> values = zero->read_tensor(tensor, TensorKind::weight).values;
    if (tensor.name.ends_with("c_proj.weight"))
      CHECK(values == std::vector<float>(values.size(), 0.0f));
    else
      CHECK(same_bits(values, normal->read_tensor(tensor, TensorKind::weight).values));
  }
}
