#pragma once

namespace gpt2 {

constexpr int largest_divisor_at_most(int number, int limit) { // limit >= 1
  int divisor = limit < number ? limit : number;
  while (number % divisor != 0) --divisor;
  return divisor;
}

} // namespace gpt2
