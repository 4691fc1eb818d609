"use strict";
// The page of bin/compare: groups of runs compared with the first group. tools/compare/comparison_text.cpp makes its data.
// Each run of the page is a group: mean, min and max over its seeds.

const EQUAL = { step: "at equal step", tokens: "at equal tokens", seconds: "at equal time" };
const OUTCOMES = { within: "good", better: "good", worse: "bad", unclear: "warn", one_seed: "warn", no_number: "warn" };
const signed = (value) => (value === null || value === undefined ? "–" : (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(4));
const withError = (estimate, format) => (estimate.mean === null ? "–" : format(estimate.mean) + (estimate.error === null ? "" : ` ± ${estimate.error.toFixed(4)}`));
const others = () => data.comparison.groups.slice(1);

function comparisonHeader() {
  const { groups, notes } = data.comparison;
  return [element("h1", {}, `${others().map((group) => group.name).join(", ")} compared with ${groups[0].name}`),
    ...others().map((group) => element("p", { class: "verdict " + OUTCOMES[group.outcome] }, group.verdict)),
    ...groups.filter((group) => group.trouble).map((group) => note(`${group.name}: ${group.trouble}.`)),
    ...notes.map((text) => note(text.charAt(0).toUpperCase() + text.slice(1) + ".")),
    ...numberNodes()];
}

function bandWords(bucket) {
  const most = Math.max(...data.comparison.groups.map((group) => group.runs.length));
  const points = bucket > 1 ? `; each point: up to ${bucket} steps` : "";
  return (most > 1 ? "mean over seeds; band: lowest to highest seed" : "one seed") + points;
}

// ---- numbers ----

function numberNodes() {
  const { groups, step, loss, margin } = data.comparison;
  const titles = ["", "seeds", `${loss} loss at step ${grouped(step)}`, ...Object.values(EQUAL).map((words) => "gap " + words), "tokens/s", "speed", "memory"];
  const cell = (text, name = null) => element("td", { class: "number", "data-cell": name }, text);
  const rows = groups.map((group, i) => element("tr", {}, element("td", { class: "run" }, swatch(i), " ", element("b", {}, group.name)), cell(String(group.seeds.length)),
    cell(withError(group.loss, (v) => v.toFixed(4)), "loss"),
    ...Object.keys(EQUAL).map((axis) => cell(group.gaps ? withError(group.gaps[axis], signed) : "–", "gap-" + axis)),
    cell(group.tokens_per_second.mean === null ? "–" : formatCount(group.tokens_per_second.mean)), cell(group.speed_ratio === null ? "–" : group.speed_ratio.toFixed(2) + "×"),
    cell(group.memory_gb.mean === null ? "–" : group.memory_gb.mean.toFixed(1) + " GB")));
  const places = others().map((group) => `${group.name}: ${Object.keys(EQUAL).map((axis) => group.gaps[axis].place).join("; ")}.`).join(" ");
  const paired = groups.some((group) => group.seeds.length > 1) && others().some((group) => group.paired);
  return [table(element("tr", {}, ...titles.map((t, i) => element("th", { class: i ? "number" : "" }, t))), ...rows),
    note(`±: standard error over seeds. Gap: loss minus that of ${groups[0].name}, ${others().every((g) => g.paired) ? "paired by seed" : "not paired"}; below zero is better, within ±${margin} counts as equal. Measured at: ${places} ` +
      "At equal time the slower run is in the middle of its schedule, at a higher learning rate than at its end. This favors the faster run."), paired ? seedTable() : ""];
}

function seedTable() { // one column per pair
  const seeds = data.comparison.groups[0].seeds;
  const rows = others().filter((group) => group.paired).map((group) => {
    const common = seeds.filter((seed) => group.seeds.includes(seed));
    return element("tr", {}, element("td", { class: "run" }, swatch(data.comparison.groups.indexOf(group)), " " + group.name),
      ...seeds.map((seed) => element("td", { class: "number" }, common.includes(seed) ? signed(group.gaps.step.by_seed[common.indexOf(seed)]) : "–")));
  });
  return element("details", {}, element("summary", {}, "gap at equal step by seed"),
    table(element("tr", {}, element("th", {}, "seed"), ...seeds.map((seed) => element("th", { class: "number" }, String(seed)))), ...rows));
}

// ---- gap curves on the axis of the page ----

function gapSeries() {
  return others().flatMap((group, i) => {
    const make = (curve, name, more) => {
      if (!curve.x.length) return null;
      const seeds = group.gaps.step.count > 1 && group.paired;
      return { run: group.name, name, color: colorOf(i + 1), x: curve.x, y: curve.mean, low: seeds && curve.low, high: seeds && curve.high,
        moment: (k) => `${EQUAL[view.axis]}: ${view.where(curve.x[k])}`, ...more };
    };
    return [make(group.train[view.axis], `${group.name}, training`, { kind: "line", dash: dashOf(i + 1) }),
      make(group.validation[view.axis], `${group.name}, validation`, { kind: "points", dash: dashOf(i + 1), whiskers: true })].filter(Boolean);
  });
}

function gapPanel() {
  const { groups, margin } = data.comparison;
  const panel = new CurvePanel(view, { title: `Gap to ${groups[0].name}`, label: `Loss minus that of ${groups[0].name}, at equal step, tokens or time`, height: 220, series: gapSeries,
    format: signed, levels: [0, margin, -margin], close: () => view.closeGap(), empty: "no step in common",
    keys: [words(`nats; thick: training, thin with points: validation; band and bars: two standard errors; dotted: ±${margin}`)] });
  panel.node.id = "gap";
  return panel;
}
