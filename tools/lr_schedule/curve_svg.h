// One curve as an SVG file with axes and named sections of the x axis; light and dark.
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
  std::vector<double> x, y; // x ascending; the y axis starts at 0
  std::vector<CurvePart> parts;
};

std::string curve_svg(const Curve& curve);

} // namespace gpt2
