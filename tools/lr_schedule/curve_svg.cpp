#include "tools/lr_schedule/curve_svg.h"

#include <algorithm>
#include <cmath>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "tools/report/page.h"

namespace gpt2 {
namespace {

constexpr double kWidth = 760, kHeight = 300, kLeft = 74, kRight = 740, kTop = 56, kBottom = 262;
constexpr double kCharacter = 6.6; // average width in pixels

constexpr const char* kStyle =
    "svg{background:#fff;font:12px system-ui,sans-serif;fill:#5d646d}"
    ".title{font-size:15px;font-weight:600;fill:#1c1e21}.grid{stroke:#d9dce1}.part{stroke:#5d646d;stroke-dasharray:2 3}"
    ".curve{fill:none;stroke:#0072b2;stroke-width:2;stroke-linejoin:round}"
    "@media (prefers-color-scheme:dark){svg{background:#15181c;fill:#9aa3ad}.title{fill:#e4e7eb}.grid{stroke:#343a42}"
    ".part{stroke:#9aa3ad}.curve{stroke:#56b4e9}}";

double round_step(double span, int count) { // 1, 2 or 5 times a power of ten
  const double rough = span / count, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * 0.999) return factor * power;
  return 10 * power;
}

std::string text(double x, double y, const char* anchor, const std::string& words, const char* style = "") {
  return formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor, style) + escaped_html(words) +
         "</text>\n";
}

std::string line(const char* style, double x1, double y1, double x2, double y2) {
  return formatted("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", style, x1, y1, x2, y2);
}

} // namespace

std::string curve_svg(const Curve& curve) {
  const double from = curve.x.front(), to = std::max(curve.x.back(), from + 1);
  const double highest = *std::max_element(curve.y.begin(), curve.y.end()), high = highest > 0 ? 1.05 * highest : 1;
  const auto x_of = [&](double x) { return kLeft + (x - from) / (to - from) * (kRight - kLeft); };
  const auto y_of = [&](double y) { return kBottom - y / high * (kBottom - kTop); };

  std::string out = formatted("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" role=\"img\">\n<title>",
                              kWidth, kHeight) +
                    escaped_html(curve.title) + "</title>\n<style>" + kStyle + "</style>\n" +
                    text(kLeft, 22, "start", curve.title, " class=\"title\"");
  const double y_step = round_step(high, 5), x_step = std::max(1.0, round_step(to - from, 7));
  for (int i = 0; i * y_step <= high; ++i)
    out += line("grid", kLeft, y_of(i * y_step), kRight, y_of(i * y_step)) +
           text(kLeft - 8, y_of(i * y_step) + 4, "end", formatted("%.3g", i * y_step));
  for (double x = std::ceil(from / x_step) * x_step; x <= to; x += x_step)
    out +=
        line("grid", x_of(x), kBottom, x_of(x), kBottom + 4) + text(x_of(x), kBottom + 18, "middle", format_count(x));
  out += text((kLeft + kRight) / 2, kHeight - 4, "middle", curve.x_name);

  double used = 0; // keeps the names above the curve apart
  for (const CurvePart& part : curve.parts) {
    if (part.from > from) out += line("part", x_of(part.from), kTop, x_of(part.from), kBottom);
    const double width = kCharacter * static_cast<double>(part.name.size());
    const double begin = std::max(used, std::min(x_of(part.from), kRight - width));
    out += text(begin, kTop - 8, "start", part.name);
    used = begin + width + 16;
  }
  out += "<polyline class=\"curve\" points=\"";
  for (size_t i = 0; i < curve.x.size(); ++i) out += formatted("%.1f,%.1f ", x_of(curve.x[i]), y_of(curve.y[i]));
  return out + "\"/>\n</svg>\n";
}

} // namespace gpt2
