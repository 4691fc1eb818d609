// Collectives over sockets: against plain loops, to the bit, at every number of ranks.
#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <mutex>
#include <random>

#include "engine/base/float_formats.h"
#include "engine/ranks/communicator.h"
#include "tests/expect_error.h"
#include "tests/ranks_testing.h"

using namespace gpt2;
using namespace std::chrono_literals;

namespace {

template <class Value>
std::vector<Value> random_values(int64_t count, int seed) {
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  std::normal_distribution<double> normal;
  std::vector<Value> values(static_cast<size_t>(count));
  for (Value& value : values) value = static_cast<Value>(normal(random) * std::exp2(static_cast<int>(random() % 20)));
  return values;
}

template <class Value>
bool same_bits(const std::vector<Value>& a, const std::vector<Value>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Value)) == 0;
}

// The parts of all ranks, added in their order, after `prepare`.
template <class Value, class Prepare>
std::vector<Value> plain_sum(int ranks, int64_t count, int seed, Prepare prepare) {
  std::vector<Value> sums;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Value> values = random_values<Value>(count, seed + rank);
    for (Value& value : values) value = prepare(value);
    if (rank == 0)
      sums = std::move(values);
    else
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  }
  return sums;
}

template <class Value>
Value unchanged(Value value) {
  return value;
}
float to_bf16(float value) { return bf16_decode(bf16_encode(value)); }

template <class Value>
std::vector<Value> part_of(const std::vector<Value>& values, int rank, int64_t count) {
  return {values.begin() + rank * count, values.begin() + (rank + 1) * count};
}

} // namespace

TEST_CASE("a single process has nothing to add") {
  const auto single = make_single_communicator();
  std::vector<float> values{1, 2, 3};
  single->reduce_scatter(values.data(), 3, GradExchange::bf16);
  single->all_reduce_sum(values.data(), 3);
  single->all_gather(values.data(), 12);
  CHECK(values == std::vector<float>{1, 2, 3});
  CHECK(single->waited_seconds() == 0);
}

TEST_CASE("collectives of 1, 2, 3, 4 and 7 ranks are plain sums in the order of ranks, bit for bit") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    run_group_without_error(ranks, [&](RankGroup& group) {
      const auto communicator = make_socket_communicator(group);
      CHECK(communicator->rank() == group.rank());
      CHECK(communicator->ranks() == ranks);
      for (int repetition = 0; repetition < 3; ++repetition) {
        for (const int64_t count : {1, 5, 1000}) { // of one rank's part
          CAPTURE(count);
          const int64_t all = count * ranks;
          for (const GradExchange exchange : {GradExchange::fp32, GradExchange::bf16}) {
            std::vector<float> buffer = random_values<float>(all, 10 + group.rank());
            communicator->reduce_scatter(buffer.data(), count, exchange);
            // Of one rank nothing travels, and nothing is rounded.
            const bool rounded = exchange == GradExchange::bf16;
            const auto expected = plain_sum<float>(ranks, all, 10, rounded ? to_bf16 : unchanged<float>);
            CHECK(same_bits(part_of(buffer, group.rank(), count), part_of(expected, group.rank(), count)));
            communicator->all_gather(buffer.data(), count * 4);
            CHECK(same_bits(buffer, expected));
          }
          std::vector<float> floats = random_values<float>(count, 20 + group.rank());
          communicator->all_reduce_sum(floats.data(), count);
          CHECK(same_bits(floats, plain_sum<float>(ranks, count, 20, unchanged<float>)));

          std::vector<double> doubles = random_values<double>(count, 30 + group.rank());
          communicator->all_reduce_sum(doubles.data(), count);
          CHECK(same_bits(doubles, plain_sum<double>(ranks, count, 30, unchanged<double>)));

          std::vector<uint32_t> amaxes(static_cast<size_t>(count)), largest(amaxes.size());
          for (int rank = 0; rank < ranks; ++rank) {
            const auto values = random_values<float>(count, 40 + rank);
            for (size_t i = 0; i < largest.size(); ++i) {
              const uint32_t bits = std::bit_cast<uint32_t>(std::abs(values[i]));
              largest[i] = std::max(largest[i], bits);
              if (rank == group.rank()) amaxes[i] = bits;
            }
          }
          communicator->all_reduce_max(amaxes.data(), count);
          CHECK(amaxes == largest);
        }
        communicator->all_reduce_sum(static_cast<float*>(nullptr), 0);
      }
    });
  }
}

TEST_CASE("large buffers do not lock up, and parts beyond a chunk are right") {
  constexpr int64_t kCount = (2 << 20) + 3; // of one rank: 8 MB
  for (const GradExchange exchange : {GradExchange::fp32, GradExchange::bf16}) {
    run_group_without_error(3, [&](RankGroup& group) {
      const auto communicator = make_socket_communicator(group);
      std::vector<float> buffer(3 * kCount);
      for (int64_t i = 0; i < 3 * kCount; ++i)
        buffer[static_cast<size_t>(i)] = static_cast<float>((i % 127 + 1) * (group.rank() + 1));
      communicator->reduce_scatter(buffer.data(), kCount, exchange);
      communicator->all_gather(buffer.data(), kCount * 4);
      int64_t wrong = 0;
      const auto rounded = [&](int64_t value) {
        return exchange == GradExchange::bf16 ? to_bf16(static_cast<float>(value)) : static_cast<float>(value);
      };
      for (int64_t i = 0; i < 3 * kCount; ++i) {
        const int64_t unit = i % 127 + 1;
        wrong += buffer[static_cast<size_t>(i)] != rounded(unit) + rounded(2 * unit) + rounded(3 * unit);
      }
      CHECK(wrong == 0);
      communicator->all_reduce_sum(buffer.data(), 3 * kCount);
      CHECK(communicator->waited_seconds() > 0);
    });
  }
}

TEST_CASE("who waits for a slow rank knows how long") {
  std::mutex mutex;
  std::vector<double> waited(2);
  run_group_without_error(2, [&](RankGroup& group) {
    const auto communicator = make_socket_communicator(group);
    group.barrier();
    if (group.rank() == 1) std::this_thread::sleep_for(300ms);
    float value = 1;
    communicator->all_reduce_sum(&value, 1);
    const std::lock_guard lock(mutex);
    waited[static_cast<size_t>(group.rank())] = communicator->waited_seconds();
  });
  CHECK(waited[0] > 0.25);
  CHECK(waited[1] < waited[0]);
}

TEST_CASE("a collective that waits for a rank that has failed or left ends with its name") {
  for (const bool announced : {true, false}) {
    const auto outcomes = run_group(3, patient(), [&](RankGroup& group) {
      const auto communicator = make_socket_communicator(group);
      std::vector<float> values(1 << 20);
      if (group.rank() == 2 && announced) return group.announce_failure("out of memory");
      if (group.rank() == 2) throw Error(ExitCode::data, "bad shard");
      for (;;) communicator->all_reduce_sum(values.data(), 1 << 20);
    });
    for (const size_t rank : {0, 1}) {
      CHECK(contains(outcomes[rank].what(), "rank 2 ("));
      CHECK(
          contains(outcomes[rank].what(), announced ? ") failed: out of memory" : ") failed: it ended with an error"));
    }
  }
}
