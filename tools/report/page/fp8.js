"use strict";
// FP8 health: heat maps over layers and steps, summaries over all tensors.

const HEAT_COLORS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"]; // viridis
const HEAT_MAPS = {
  amax: { title: "Largest magnitude (amax)", format: (v) => trimmed(Number(v.toPrecision(2)).toString()) },
  saturated: { title: "Saturated: share of values beyond the format's range", format: formatShare, range: [1e-6, 1e-1] },
  flushed: { title: "Flushed: share of nonzero values that became zero", format: formatShare, range: [1e-6, 1e-1] },
};

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const digitOf = new Map([...DIGITS].map((c, i) => [c, i]));

function heatValue(row, column) { // decodes tools/report/heat_map.h; null: no value
  if (2 * column + 1 >= row.length) return null;
  const code = 64 * digitOf.get(row[2 * column]) + digitOf.get(row[2 * column + 1]);
  return code === 0 ? null : code === 1 ? 0 : 10 ** (-12 + (20 * (code - 2)) / 4093);
}

function heatColor(share) {
  const at = Math.min(Math.max(share, 0), 1) * (HEAT_COLORS.length - 1), i = Math.min(Math.floor(at), HEAT_COLORS.length - 2);
  const part = (color, k) => parseInt(color.slice(1 + 2 * k, 3 + 2 * k), 16);
  return [0, 1, 2].map((k) => Math.round(part(HEAT_COLORS[i], k) + (at - i) * (part(HEAT_COLORS[i + 1], k) - part(HEAT_COLORS[i], k))));
}

class HeatPanel extends Panel {
  constructor(view, options) {
    super(view, options); // also: metric, heat
    const kinds = view.heatKind ? [view.heatKind] : Object.keys(this.heat.kinds);
    this.cells = this.heat.layers.map((_, row) => this.heat.step.map((_, column) => { // the largest value over all kinds, and its kind
      let worst = { value: null, kind: "" };
      for (const kind of kinds) {
        const maps = this.heat.kinds[kind], telling = view.heatKind ? null : maps["telling_" + this.metric];
        const value = heatValue((telling && telling[row]) || maps[this.metric][row], column);
        if (value !== null && (worst.value === null || value > worst.value)) worst = { value, kind };
      }
      return worst;
    }));
    this.range = HEAT_MAPS[this.metric].range || this.measure();
    for (const cell of this.cells.flat()) cell.color = this.color(cell.value);
  }

  stops() { return this.heat[view.axis]; }

  draw(svg, f) {
    const { layers } = this.heat, columns = this.heat[view.axis];
    const rowHeight = (f.bottom - f.top) / layers.length;
    const every = Math.ceil(12 / rowHeight);
    layers.forEach((layer, row) => {
      const named = !layer.startsWith("h.");
      if (!named && (row % every !== 0 || (every > 1 && row + every / 2 > layers.length - 1))) return;
      svg.append(shape("text", { x: f.left - 6, y: f.top + (row + 0.5) * rowHeight + 4, "text-anchor": "end" }, named ? layer : layer.slice(2)));
    });
    // an image with one pixel row per layer, scaled by CSS
    const width = Math.max(1, Math.round(f.right - f.left));
    const canvas = element("canvas", { width, height: layers.length, role: "img", "aria-label": this.title });
    const place = { left: f.left / f.width, top: f.top / this.height, width: (f.right - f.left) / f.width, height: (f.bottom - f.top) / this.height };
    for (const [side, share] of Object.entries(place)) canvas.style[side] = 100 * share + "%";
    const picture = canvas.getContext("2d").createImageData(width, layers.length);
    for (let x = 0, column = 0; x < width; ++x) {
      const value = f.value(f.left + x + 0.5);
      while (column < columns.length && columns[column] < value) ++column; // a record covers the steps since the previous one
      if (column === columns.length) break;
      for (let row = 0; row < layers.length; ++row) picture.data.set(this.cells[row][column].color, 4 * (row * width + x));
    }
    canvas.getContext("2d").putImageData(picture, 0, 0);
    this.plot.prepend(canvas);
  }

  color(value) { // red, green, blue, opacity
    if (value === null) return [0, 0, 0, 0];
    if (value === 0) return [128, 128, 128, 40];
    return [...heatColor(Math.log(value / this.range[0]) / Math.log(this.range[1] / this.range[0])), 255];
  }

  measure() { // range of the colors
    let low = Infinity, high = 0;
    for (const { value } of this.cells.flat()) if (value) [low, high] = [Math.min(low, value), Math.max(high, value)];
    return high > low ? [low, high] : [1e-3, 1];
  }

  tooltip(x, y) {
    const f = this.frame(), { layers } = this.heat, columns = this.heat[view.axis];
    let column = columns.findIndex((end) => end >= x - 1e-9);
    if (column < 0) column = columns.length - 1;
    const row = y === undefined ? 0 : Math.min(Math.max(Math.floor(((y - f.top) / (f.bottom - f.top)) * layers.length), 0), layers.length - 1);
    const { value, kind } = this.cells[row][column];
    return { x: columns[column], content: [
      element("div", { class: "soft" }, this.view.moment({ table: this.heat, low: this.heat.bucket > 1 }, column)),
      element("div", {}, `${layers[row]}/${kind}: `, element("b", { "data-series": this.metric }, value === null ? "none" : HEAT_MAPS[this.metric].format(value)))] };
  }
}

function rampNodes(range, format) {
  const stops = HEAT_COLORS.map((c, i) => `${c} ${((100 * i) / (HEAT_COLORS.length - 1)).toFixed(0)}%`).join(",");
  return element("span", { class: "key" }, format(range[0]), element("span", { class: "ramp", style: `background:linear-gradient(90deg,${stops})` }), format(range[1]), " (logarithmic; grey: zero)");
}

function fp8Panels() {
  const section = byId("fp8");
  const quantized = data.runs.filter((run) => run.fp8.step.length || run.heat.step.length);
  section.replaceChildren(element("h2", { id: "fp8-title" }, "FP8 health"));
  if (!quantized.length) {
    section.append(note(several() ? "No FP8 data: none of these runs trained in FP8." : `No FP8 data: this run trained in ${data.runs[0].precision}.`));
    return [];
  }
  const panels = [];
  const withMap = data.runs.map((run, i) => [run, i]).filter(([run]) => run.heat.step.length);
  if (withMap.length) {
    if (!data.runs[view.heatRun] || !data.runs[view.heatRun].heat.step.length) view.heatRun = withMap[0][1];
    const heat = data.runs[view.heatRun].heat;
    if (view.heatKind && !heat.kinds[view.heatKind]) view.heatKind = "";
    const select = (label, values, chosen, change) => element("label", {}, label, element("select", { onchange: (e) => { change(e.target.value); buildPanels(); } },
      ...values.map(([value, text]) => element("option", { value, selected: String(value) === String(chosen) }, text))));
    section.append(element("div", { class: "controls" },
      several() && select("run", withMap.map(([run, i]) => [i, run.name]), view.heatRun, (v) => { view.heatRun = Number(v); }),
      select("tensors", [["", "worst of each layer (without GELU's tail)"], ...Object.keys(heat.kinds).sort().map((k) => [k, k])], view.heatKind, (v) => { view.heatKind = v; })));
    section.append(note(`${several() ? data.runs[view.heatRun].name + ". " : ""}Layers from top to bottom; ` +
      (heat.bucket > 1 ? `each cell is the worst record of up to ${heat.bucket} steps.` : "each cell covers the steps since the previous record.")));
    const rows = heat.layers.length, height = Math.round(Math.min(Math.max(rows * 12, 60), 260)) + MARGIN.top + MARGIN.bottom;
    for (const metric of Object.keys(HEAT_MAPS)) {
      const panel = new HeatPanel(view, { title: HEAT_MAPS[metric].title, metric, heat, height, covered: true });
      panel.caption.append(rampNodes(panel.range, HEAT_MAPS[metric].format));
      panel.node.id = "heat-" + metric;
      panels.push(panel);
    }
  } else {
    section.append(note("No heat maps: the run needs --fp8_detail."));
  }
  const shares = { worst_saturated: ["Worst saturated share of a tensor", "var(--c1)"], worst_flushed: ["Worst flushed share of a tensor (without GELU's tail)", "var(--c0)"] };
  for (const [column, [title, color]] of Object.entries(shares)) {
    if (!data.runs.some((run) => run.fp8[column])) continue;
    panels.push(new CurvePanel(view, { title, height: 112, zero: true, format: formatShare, tick: (v) => formatShare(v),
      series: ofAllRuns((run, i) => series(run, i, run.fp8, column, { name: column.replace("_", " "), color })) }));
  }
  if (data.runs.some((run) => run.fp8.fwd_scale))
    panels.push(new CurvePanel(view, { title: "Scales", height: 128, log: "always", tick: (v) => formatCount(v),
      keys: several() ? [words("geometric means; thick: activations and weights, thin: gradients")] : [key("var(--c0)", "activations and weights"), key("var(--c1)", "gradients"), words("geometric means")],
      series: () => data.runs.flatMap((run, i) => {
        const forward = series(run, i, run.fp8, "fwd_scale", { name: "activations and weights" });
        const backward = series(run, i, run.fp8, "bwd_scale", { name: "gradients", color: "var(--c1)" });
        if (several() && backward) Object.assign(backward, { name: run.name + ", gradients", width: 0.9 });
        return [forward, backward].filter(Boolean);
      }) }));
  if (data.runs.some((run) => run.fp8.blocks_in_bf16 && Math.max(...run.fp8.blocks_in_bf16.mean) > 0))
    panels.push(new CurvePanel(view, { title: "Blocks in BF16", height: 100, zero: true, whole: true, series: ofAllRuns((run, i) => series(run, i, run.fp8, "blocks_in_bf16", { name: "blocks" })) }));
  section.append(...panels.map((panel) => panel.node));
  return panels;
}
