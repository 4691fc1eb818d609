#include "tools/plan/gpu_table.h"

#include <doctest/doctest.h>

using namespace gpt2;

TEST_CASE("a plan never assumes more memory than the driver of the card reports") {
  struct Reported {
    const char* gpu;
    double gib; // total capacity in PyTorch's messages, on Linux
  };
  for (const Reported& card : {Reported{"RTX 3090", 23.69},
                               {"RTX 4060", 7.63},
                               {"RTX 4090", 23.52},
                               {"RTX 5090", 31.36},
                               {"RTX 6000 Ada", 44.43},
                               {"RTX PRO 6000", 94.97},
                               {"A100 40GB", 39.38},
                               {"A100 80GB", 79.15},
                               {"L40S", 44.39},
                               {"H100 SXM", 79.11},
                               {"H200", 139.8}}) {
    CAPTURE(card.gpu);
    const double free_gib = static_cast<double>(device_of(find_known_gpu(card.gpu)).free_bytes) / (1 << 30);
    CHECK(free_gib < card.gib - 0.99); // CUDA's context: 1 GiB
    CHECK(free_gib > card.gib - 1.2);
  }
}
