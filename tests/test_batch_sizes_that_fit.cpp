#include "engine/model/batch_sizes_that_fit.h"

#include <doctest/doctest.h>

using namespace gpt2;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Weights and state, and so much a sequence.
auto linear(int64_t fixed, int64_t each) {
  return [=](int batch_size) { return fixed + each * batch_size; };
}

} // namespace

TEST_CASE("divisors of the target, largest first, up to the bound") {
  CHECK(batch_sizes_that_fit(12, 12, 100 * kGiB, linear(0, 1)) == std::vector<int>{12, 6, 4, 3, 2, 1});
  CHECK(batch_sizes_that_fit(12, 5, 100 * kGiB, linear(0, 1)) == std::vector<int>{4, 3, 2, 1});
  CHECK(batch_sizes_that_fit(7, 100, 100 * kGiB, linear(0, 1)) == std::vector<int>{7, 1});
  CHECK(batch_sizes_that_fit(512, 64, 140 * kGiB, linear(28 * kGiB, kGiB)) == std::vector<int>{64, 32, 16, 8, 4, 2, 1});
}

TEST_CASE("what fits leaves room for libraries and allocator") {
  const int64_t free = 140 * kGiB;
  const auto bytes_of = linear(29 * kGiB, kGiB * 3 / 2);
  const std::vector<int> fitting = batch_sizes_that_fit(512, 64, free, bytes_of);
  REQUIRE_FALSE(fitting.empty());
  for (const int batch_size : fitting) CHECK(bytes_of(batch_size) + bytes_to_leave(free) <= free);
  CHECK(batch_sizes_that_fit(512, 64, free, linear(29 * kGiB, 26 * kGiB / 16)).front() == 32); // 64: 133 GiB
}

TEST_CASE("to the byte") {
  const int64_t free = 60 * kGiB, usable = free - bytes_to_leave(free);
  CHECK(batch_sizes_that_fit(1, 1, free, linear(usable, 0)) == std::vector<int>{1});
  CHECK(batch_sizes_that_fit(1, 1, free, linear(usable + 1, 0)).empty());
}

TEST_CASE("nothing fits where not even one sequence does") {
  CHECK(batch_sizes_that_fit(8, 8, 10 * kGiB, linear(9 * kGiB, 1)).empty());
  CHECK(batch_sizes_that_fit(8, 8, kGiB, linear(0, 1)).empty()); // a device that others have filled
}
