// One curve as an SVG file of its own: axes, parts of the x axis with their names; light and dark.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

struct CurvePart {
  std::string name;
  double from, to;
};

struct Curve {
  std::string title, x_name;
  std::vector<double> x, y; // x grows; y is drawn from 0
  std::vector<CurvePart> parts;
};

std::string curve_svg(const Curve& curve);

} // namespace gpt2
