"use strict";
// Number formats and axis ticks.

const grouped = (value) => Math.round(value).toLocaleString("en-GB");

function formatCount(value) { // 950, 50.3K, 124.5M, 9.9B
  for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]])
    if (Math.abs(value) >= size) return trimmed((value / size).toFixed(value / size < 10 ? 2 : 1)) + letter;
  return trimmed(value.toFixed(Number.isInteger(value) ? 0 : 1));
}

const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

function formatValue(value) { // five digits
  if (value === null || value === undefined || !Number.isFinite(value)) return "NaN";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7) return trimmed(value.toExponential(3).replace(/e\+?/, "e")).replace(/\.?0+e/, "e");
  if (size >= 1e4) return grouped(value);
  return String(Number(value.toPrecision(5)));
}

const formatShare = (value) => (value === 0 ? "0" : value < 1e-8 ? value.toExponential(1) : trimmed(String(Number((100 * value).toPrecision(2)))) + " %");

function formatSeconds(seconds) {
  if (seconds < 120) return trimmed(seconds.toFixed(1)) + " s";
  if (seconds < 7200) return trimmed((seconds / 60).toFixed(1)) + " min";
  if (seconds < 360000) return trimmed((seconds / 3600).toFixed(2)) + " h";
  return trimmed((seconds / 86400).toFixed(1)) + " days";
}

// ---- axes ----

// About `count` round numbers from `low` to `high`: 1, 2 or 5 times a power of ten apart, at least `least` apart.
function ticks(low, high, count, least = 0) {
  const rough = Math.max((high - low) / Math.max(count, 1), least, Number.MIN_VALUE);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && out.length < 50; ++k) out.push(k * step);
  return { at: out, step };
}

// At most `count` ticks: 1, 2, 5 or 1, 3 times powers of ten, or every n-th power of ten.
function logTicks(low, high, count) {
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
  const least = Math.log10(high / low) / Math.max(count, 1);
  for (const [steps, every, gap] of [[[1, 2, 5], 1, 0.3], [[1, 3], 1, 0.47], ...[1, 2, 3, 5, 10].map((n) => [[1], n, n])]) {
    if (gap < least) continue;
    const out = [];
    for (let k = Math.ceil(from / every) * every; k <= to; k += every) out.push(...steps.map((m) => m * 10 ** k));
    const within = out.filter((v) => v >= low * 0.999 && v <= high * 1.001);
    return within.length >= 2 ? within : ticks(low, high, count).at.filter((v) => v > 0);
  }
  return [low, high];
}

function tickText(value, step) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) {
    if (size >= 1e6) return formatCount(value);
    return trimmed(value.toExponential(2).replace(/e\+?/, "e").replace(/\.?0+e/, "e"));
  }
  const digits = step ? Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) : 6;
  const text = value.toFixed(Math.min(digits, 8));
  return step ? (size >= 1e4 ? Number(text).toLocaleString("en-GB") : text) : trimmed(text);
}

const AXES = {
  step: { name: "steps", least: 1, unit: () => [1, ""], text: (v, step) => Number(v.toFixed(0)).toLocaleString("en-GB") },
  tokens: { name: "tokens", least: 1, unit: () => [1, ""], text: (v) => formatCount(v) },
  seconds: {
    name: "time", least: 0,
    unit: (span) => (span < 180 ? [1, " s"] : span < 10800 ? [60, " min"] : [3600, " h"]),
    text: (v, step) => tickText(v, step),
  },
};
