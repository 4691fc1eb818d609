"use strict";
// The page of one run or of several, from what engine/report/page_data.cpp put into it.

const EVENT_KINDS = { // in the order of their lanes
  resume: { name: "resumed", colour: "var(--c0)" }, skip: { name: "skipped", colour: "var(--c1)" },
  bad_data: { name: "bad data", colour: "var(--c3)" }, fallback: { name: "to BF16", colour: "var(--c6)" },
  throttle: { name: "throttled", colour: "var(--c4)" }, save: { name: "saved", colour: "var(--c2)" },
  save_failed: { name: "not saved", colour: "var(--bad)" },
};
const DASHES = ["", "7 3", "2 3"]; // after eight runs the colours begin again, with another line
const HEAT_COLOURS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"]; // viridis
const HEAT_MAPS = {
  amax: { title: "Largest magnitude (amax)", format: (v) => trimmed(Number(v.toPrecision(2)).toString()) },
  saturated: { title: "Saturated: share of values beyond the format's range", format: formatShare, range: [1e-6, 1e-1] },
  flushed: { title: "Flushed: share of nonzero values that became zero", format: formatShare, range: [1e-6, 1e-1] },
};
const MACHINE_NAMES = {
  gpu_utilization: ["GPU busy", (v) => trimmed((100 * v).toFixed(1)) + " %"], gpu_memory_gb: ["Memory in use", (v) => v.toFixed(1) + " GB"],
  gpu_sm_clock_mhz: ["SM clock", (v) => grouped(v) + " MHz"], gpu_memory_clock_mhz: ["Memory clock", (v) => grouped(v) + " MHz"],
  gpu_power_watts: ["Power", (v) => grouped(v) + " W"], gpu_temperature_c: ["Temperature", (v) => grouped(v) + " °C"],
  gpu_throttled: ["Slowed down by heat or hardware", (v) => trimmed((100 * v).toFixed(1)) + " %"],
  gpu_power_capped: ["At its power limit", (v) => trimmed((100 * v).toFixed(1)) + " %"],
};

const byId = (id) => document.getElementById(id);
let data = JSON.parse(byId("data").textContent);
const several = () => data.runs.length > 1;
const colourOf = (index) => `var(--c${index % 8})`;
const dashOf = (index) => DASHES[Math.floor(index / 8) % DASHES.length];
const last = (list) => list[list.length - 1];

// ---- what all panels share ----

const view = {
  axis: "step", smoothing: "auto", lossRange: null, from: null, to: null, cursor: null, hidden: new Set(), panels: [],
  heatRun: 0, heatKind: "", sample: null,

  full() {
    let low = Infinity, high = -Infinity;
    for (const run of data.runs) {
      const xs = run.steps[this.axis];
      if (!xs.length || this.hidden.has(run.name)) continue;
      low = Math.min(low, this.axis === "step" ? xs[0] : 0);
      high = Math.max(high, last(xs));
    }
    if (!(high > low)) [low, high] = Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
    return [low, high];
  },
  closeLoss() { // unless chosen: for runs so long that the first fall would leave the rest flat
    return this.lossRange ? this.lossRange === "close" : data.runs.some((run) => run.steps.rows >= 2000);
  },
  range() { return this.from === null ? this.full() : [this.from, this.to]; },
  zoom(from, to) {
    const [low, high] = this.full();
    const least = this.axis === "seconds" ? 1e-3 : 1;
    if (from !== null) [from, to] = [Math.max(from, low), Math.min(to, high)];
    if (from !== null && to - from < least) return;
    const whole = from === null || (from <= low && to >= high);
    [this.from, this.to] = whole ? [null, null] : [from, to];
    this.cursor = null;
    renderPanels();
  },
  // The same stretch of the first run on another axis.
  changeAxis(axis) {
    const steps = data.runs[0].steps;
    const convert = (x) => steps[axis][nearest(steps[this.axis], x)];
    if (this.from !== null && steps.step.length) [this.from, this.to] = [convert(this.from), convert(this.to)];
    if (this.from !== null && !(this.to > this.from)) this.from = this.to = null;
    this.axis = axis;
    this.cursor = null;
    renderPanels();
  },
  where(x) { return this.axis === "step" ? "step " + grouped(x) : this.axis === "tokens" ? formatCount(x) + " tokens" : formatSeconds(x); },
  moment(series, i) {
    const table = series.table;
    const from = series.low ? Math.floor((table.step[i] - 1) / table.bucket) * table.bucket + 1 : table.step[i];
    const steps = from < table.step[i] ? `steps ${grouped(from)} to ${grouped(table.step[i])}` : `step ${grouped(table.step[i])}`;
    return `${steps} · ${formatCount(table.tokens[i])} tokens · ${formatSeconds(table.seconds[i])}`;
  },
  point(panel, x, y) { // the cursor in all panels, what is there in a box beside it
    const told = panel ? panel.tell(x, y) : null;
    const [from, to] = this.range();
    this.cursor = panel ? (told ? told.x : x) : null;
    for (const one of this.panels) {
      const shown = this.cursor !== null && this.cursor >= from && this.cursor <= to;
      one.cursor.setAttribute("visibility", shown ? "visible" : "hidden");
      if (!shown) continue;
      const px = one.frame().x(this.cursor);
      one.cursor.setAttribute("x1", px);
      one.cursor.setAttribute("x2", px);
    }
    const box = byId("tooltip");
    box.hidden = !told;
    if (!told) return;
    box.replaceChildren(...told.content);
    const place = panel.svg.getBoundingClientRect(), width = document.documentElement.clientWidth;
    const px = place.left + (panel.frame().x(this.cursor) / panel.width) * place.width;
    const left = px + 14 + box.offsetWidth < width - 8 ? px + 14 : Math.max(8, px - 14 - box.offsetWidth);
    box.style.left = Math.min(left, Math.max(8, width - 8 - box.offsetWidth)) + scrollX + "px";
    const under = width < 600; // a finger would hide it
    box.style.top = (under ? place.bottom + 2 : place.top + 10) + scrollY + "px";
  },
};

// ---- header ----

function facts(run) {
  const { steps, validations } = run;
  const done = steps.step.length ? last(steps.step) : 0;
  const speed = recentSpeed(run), val = validations.val_loss ? validations.val_loss.mean : [];
  const lowest = validations.val_loss ? (validations.val_loss.min || val) : [];
  const best = lowest.reduce((b, v, i) => (v !== null && (b < 0 || v < lowest[b]) ? i : b), -1);
  const loss = steps.loss ? last(smoothedLoss(run).filter((v) => v !== null)) : null;
  return {
    steps: [grouped(done), `of ${grouped(run.max_steps)}`],
    tokens: [formatCount(steps.tokens.length ? last(steps.tokens) : 0), run.parameters ? formatRatio(last(steps.tokens) / run.parameters) : ""],
    time: [formatSeconds(steps.seconds.length ? last(steps.seconds) : 0), run.lives.length > 1 ? `in ${run.lives.length} parts` : ""],
    train: [loss === null || loss === undefined ? "–" : loss.toFixed(4), steps.loss && reachOf(steps.loss.mean.length) > 0 ? "smoothed" : "last step"],
    validation: val.length ? [formatLoss(last(val)), `at step ${grouped(last(validations.step))}`] : ["–", "not measured"],
    best: best >= 0 ? [formatLoss(lowest[best]), `at step ${grouped(validations.step[best])}`] : ["–", ""],
    speed: [speed ? formatCount(speed) : "–", run.steps.speed_of_light ? `tokens/s, ${(100 * meanOf(run.steps.speed_of_light.mean)).toFixed(0)} % of light` : "tokens per second"],
    left: run.state === "running" && speed ? [formatSeconds(((run.max_steps - done) * run.tokens_per_step) / speed), "left, about"] : null,
  };
}

const formatLoss = (value) => (value === null ? "not a number" : value.toFixed(4));
const formatRatio = (value) => (value >= 0.01 ? `${value < 10 ? Number(value.toPrecision(2)) : grouped(value)} per parameter` : "");
const meanOf = (list) => { const v = list.filter((x) => x !== null); return v.reduce((a, b) => a + b, 0) / Math.max(v.length, 1); };
const recentSpeed = (run) => {
  const speeds = run.steps.tokens_per_sec ? run.steps.tokens_per_sec.mean : [];
  return speeds.length ? meanOf(speeds.slice(-Math.max(5, Math.round(speeds.length / 20)))) : 0;
};
const option = (run, name) => (run.settings.find((s) => s.name === name) || { value: null }).value;
const shapeOf = (run) => (option(run, "layers") ? `${option(run, "layers")} layers, ${option(run, "channels")} channels` : "");
const modelOf = (run) => [option(run, "model"), shapeOf(run), `${formatCount(run.parameters || 0)} parameters`].filter(Boolean).join(", ");

function stateNode(run) {
  const words = { running: "running", done: "done", stopped: "stopped", diverged: "diverged" };
  return element("span", { class: "state " + run.state, title: "last line: " + run.last_timestamp }, words[run.state] || run.state);
}

function buildHeader() {
  const header = byId("header");
  if (several()) {
    const columns = ["steps", "tokens", "time", "train", "validation", "best", "speed"];
    const names = { steps: "steps", tokens: "tokens", time: "time", train: "train loss", validation: "validation", best: "best", speed: "tokens/s" };
    const rows = data.runs.map((run, i) => {
      const all = facts(run);
      return element("tr", {}, element("td", { class: "run" }, swatch(i), " ", element("b", {}, run.name)), element("td", {}, stateNode(run)),
        element("td", {}, run.precision), ...columns.map((c) => element("td", { class: "number" }, all[c][0])));
    });
    header.replaceChildren(element("h1", {}, `${data.runs.length} runs`),
      element("div", { class: "scroll" }, element("table", { class: "data" },
        element("tr", {}, ...["run", "", "precision"].map((t) => element("th", {}, t)), ...columns.map((c) => element("th", { class: "number" }, names[c]))), ...rows)));
    return;
  }
  const run = data.runs[0], all = facts(run);
  const names = { steps: "Steps", tokens: "Tokens", time: "Time", left: "To go", train: "Train loss", validation: "Validation loss", best: "Best validation", speed: "Throughput" };
  header.replaceChildren(
    element("div", { class: "title" }, element("h1", {}, run.name), stateNode(run)),
    element("p", { class: "soft" }, [modelOf(run), run.precision, run.device].filter(Boolean).join(" · ")),
    element("dl", { class: "facts" }, ...Object.keys(names).filter((n) => all[n]).map((n) =>
      element("div", {}, element("dt", {}, names[n]), element("dd", {}, all[n][0], all[n][1] && element("small", {}, all[n][1]))))));
}

const swatch = (i) => element("span", { class: "swatch" + ["", " dash", " dot"][Math.floor(i / 8) % 3], style: `color:${colourOf(i)}` });

// ---- toolbar ----

function choice(legend, name, values, chosen, change) {
  return element("fieldset", {}, element("legend", {}, legend), ...values.map(([value, text]) =>
    element("label", { class: "choice" },
      element("input", { type: "radio", name, value, checked: value === chosen, onchange: () => change(value) }), element("span", {}, text))));
}

function buildToolbar() {
  const bar = byId("toolbar");
  const legend = several() && element("div", { class: "legend", role: "group", "aria-label": "Runs" }, ...data.runs.map((run, i) =>
    element("label", {}, element("input", { type: "checkbox", checked: !view.hidden.has(run.name), onchange: (event) => {
      if (event.target.checked) view.hidden.delete(run.name);
      else view.hidden.add(run.name);
      renderPanels();
    } }), swatch(i), run.name)));
  bar.replaceChildren(
    choice("against", "axis", [["step", "steps"], ["tokens", "tokens"], ["seconds", "time"]], view.axis, (v) => view.changeAxis(v)),
    choice("smoothing", "smoothing", [["none", "none"], ["auto", "some"], ["strong", "more"]], view.smoothing, (v) => { view.smoothing = v; buildHeader(); renderPanels(); }),
    choice("loss axis", "loss-axis", [["whole", "all of it"], ["close", "after the first fall"]], view.closeLoss() ? "close" : "whole", (v) => { view.lossRange = v; renderPanels(); }),
    element("button", { id: "reset", type: "button", title: "or double click in a curve", onclick: () => view.zoom(null, null) }, "whole run"),
    ...(legend ? [legend] : []),
    element("span", { id: "live", class: "soft" }));
}

// ---- curves ----

function reachOf(count) { // points on either side
  if (view.smoothing === "none" || count < 100) return 0; // few points need none
  return Math.max(2, Math.round(count * (view.smoothing === "strong" ? 0.03 : 0.008)));
}

const smoothedLoss = (run) => smoothed(run.steps.loss.mean, reachOf(run.steps.loss.mean.length));

function series(run, index, table, column, more = {}) {
  if (!table[column]) return null;
  const { mean, min, max } = table[column];
  const [first, end] = visible(table[view.axis], ...view.range()); // a closer look is smoothed less
  const reach = more.smooth ? reachOf(end - first + 1) : 0;
  return {
    run: run.name, name: several() ? run.name : more.name || column, colour: several() ? colourOf(index) : more.colour || "var(--c0)",
    dash: several() ? dashOf(index) : "", kind: more.kind || "line", table, x: table[view.axis], y: mean, low: min, high: max,
    smooth: reach > 0 ? smoothed(mean, reach) : null,
  };
}

const ofAllRuns = (make) => () => data.runs.map(make).filter(Boolean);
const marks = () => data.runs.filter((r) => !view.hidden.has(r.name)).flatMap((r) => r.events.filter((e) => e.kind === "resume" || e.kind === "fallback").map((e) => e[view.axis]));
const key = (colour, text, dash = "") => element("span", { class: "key" }, element("span", { class: "swatch" + dash, style: `color:${colour}` }), text);
const words = (text) => element("span", { class: "key" }, text);

function lossSeries() {
  return data.runs.flatMap((run, i) => {
    const train = series(run, i, run.steps, "loss", { smooth: true, name: "train" });
    const val = series(run, i, run.validations, "val_loss", { kind: "points", name: "validation", colour: "var(--c1)" });
    if (several() && val) Object.assign(val, { name: run.name + ", validation", dash: "5 3" });
    return [train, val].filter(Boolean);
  });
}

function curvePanels() {
  const any = (table, column) => data.runs.some((run) => run[table][column]);
  const bucket = Math.max(...data.runs.map((run) => run.steps.bucket));
  const thinned = bucket > 1 ? words(`a point: up to ${bucket} steps, the band their least and greatest`) : null;
  const panels = [new CurvePanel(view, {
    title: "Loss", label: "Loss against steps, tokens or time; arrow keys move the cursor, plus and minus zoom, 0 shows the whole run", height: 300,
    keys: [several() ? words("nats per token; solid: training, dashed with points: validation") : key("var(--c0)", "training"),
      !several() && any("validations", "val_loss") ? key("var(--c1)", "validation") : null,
      several() ? null : words("nats per token"), thinned].filter(Boolean),
    series: lossSeries, marks, empty: "no step yet", close: () => view.closeLoss(),
  })];
  panels[0].node.id = "loss";
  const add = (column, title, options) => {
    if (!any("steps", column)) return;
    panels.push(new CurvePanel(view, { title, height: 128, marks, series: ofAllRuns((run, i) => series(run, i, run.steps, column, options)), ...options }));
  };
  add("lr", "Learning rate", { zero: true, name: "learning rate" });
  add("grad_norm", "Gradient norm", { smooth: true, log: "auto", name: "norm", keys: [words("before clipping")] });
  add("tokens_per_sec", "Throughput", { smooth: true, zero: true, name: "tokens/s", tick: (v) => formatCount(v), keys: [words("tokens per second")] });
  add("speed_of_light", "Speed of light", { smooth: true, zero: true, name: "share", format: (v) => (v === null ? "–" : (100 * v).toFixed(1) + " %"),
    tick: (v) => trimmed((100 * v).toFixed(1)) + " %", keys: [words("share of what the GPU could do at best")] });
  if (any("hellaswags", "per_token"))
    panels.push(new CurvePanel(view, { title: "HellaSwag", height: 128, keys: [words("share answered right, loss per token; guessing: 25 %")],
      format: (v) => (100 * v).toFixed(2) + " %", tick: (v) => trimmed((100 * v).toFixed(1)) + " %",
      series: ofAllRuns((run, i) => series(run, i, run.hellaswags, "per_token", { kind: "points", name: "accuracy" })) }));
  const events = eventPanel();
  if (events) panels.push(events);
  return panels;
}

// ---- events: one lane a kind, in it a row a run ----

class EventPanel extends Panel {
  rows() { return data.runs.length; }
  lane(kind) { return this.kinds.indexOf(kind); }

  draw(svg, f) {
    this.spots = [];
    this.kinds.forEach((kind, lane) => {
      const top = f.top + lane * this.laneHeight;
      svg.append(shape("text", { x: f.left - 6, y: top + this.laneHeight / 2 + 4, "text-anchor": "end" }, (EVENT_KINDS[kind] || { name: kind }).name));
      svg.append(shape("line", { class: "grid", x1: f.left, x2: f.right, y1: top + this.laneHeight, y2: top + this.laneHeight }));
    });
    data.runs.forEach((run, row) => {
      if (view.hidden.has(run.name)) return;
      const height = (this.laneHeight - 5) / this.rows();
      for (const event of run.events) {
        const from = f.x(event[view.axis]), to = f.x(event.to[view.axis]);
        if (to < f.left || from > f.right) continue;
        const y = f.top + this.lane(event.kind) * this.laneHeight + 2.5 + row * height;
        const colour = several() ? colourOf(row) : (EVENT_KINDS[event.kind] || { colour: "var(--c7)" }).colour;
        this.inside.append(shape("rect", { x: from - 1.5, y, width: Math.max(3, to - from), height, rx: 1, style: `fill:${colour}` }));
        this.spots.push({ from, to, y, height, event, run });
      }
    });
  }

  stops() { return data.runs.filter((r) => !view.hidden.has(r.name)).flatMap((r) => r.events.map((e) => e[view.axis])).sort((a, b) => a - b); }

  tell(x, y) {
    const px = this.frame().x(x);
    const near = this.spots
      .map((s) => ({ ...s, distance: Math.max(s.from - px, px - s.to, 0), off: y === undefined ? 0 : Math.max(s.y - y, y - s.y - s.height, 0) }))
      .filter((s) => s.distance < 7 && s.off < 5).sort((a, b) => a.distance - b.distance).slice(0, 4);
    if (!near.length) return null;
    return { x: near[0].event[view.axis], content: near.map((s) => element("div", {}, eventText(s.event, s.run))) };
  }
}

function eventText(event, run) {
  const steps = event.to.step > event.step ? `steps ${grouped(event.step)} to ${grouped(event.to.step)}` : `step ${grouped(event.step)}`;
  const name = (EVENT_KINDS[event.kind] || { name: event.kind }).name;
  return `${several() ? run.name + ", " : ""}${steps}: ${name}${event.count > 1 ? ` ${grouped(event.count)} times, first` : ""}. ${event.text}`;
}

function eventPanel() {
  const found = new Set(data.runs.flatMap((run) => run.events.map((event) => event.kind)));
  if (!found.size) return null;
  const kinds = [...Object.keys(EVENT_KINDS).filter((k) => found.has(k)), ...[...found].filter((k) => !EVENT_KINDS[k])];
  const laneHeight = Math.max(17, 5 + 6 * data.runs.length);
  const panel = new EventPanel(view, { title: "Events", label: "Events; arrow keys go from one to the next", kinds, laneHeight, height: MARGIN.top + kinds.length * laneHeight + MARGIN.bottom });
  panel.node.id = "events";
  const lines = data.runs.flatMap((run) => run.events.map((event) => [event.step, eventText(event, run)])).sort((a, b) => a[0] - b[0]);
  panel.node.append(element("details", {}, element("summary", {}, `all ${lines.length} as text`), ...lines.slice(0, 1000).map((l) => element("div", { class: "note" }, l[1]))));
  return panel;
}

// ---- FP8 ----

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const digitOf = new Map([...DIGITS].map((c, i) => [c, i]));

function heatValue(row, column) { // as engine/report/heat_map.h says; null: none
  if (2 * column + 1 >= row.length) return null;
  const code = 64 * digitOf.get(row[2 * column]) + digitOf.get(row[2 * column + 1]);
  return code === 0 ? null : code === 1 ? 0 : 10 ** (-12 + (20 * (code - 2)) / 4093);
}

function heatColour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (HEAT_COLOURS.length - 1), i = Math.min(Math.floor(at), HEAT_COLOURS.length - 2);
  const part = (colour, k) => parseInt(colour.slice(1 + 2 * k, 3 + 2 * k), 16);
  return [0, 1, 2].map((k) => Math.round(part(HEAT_COLOURS[i], k) + (at - i) * (part(HEAT_COLOURS[i + 1], k) - part(HEAT_COLOURS[i], k))));
}

class HeatPanel extends Panel {
  constructor(view, options) {
    super(view, options); // and: metric, heat
    const kinds = view.heatKind ? [view.heatKind] : Object.keys(this.heat.kinds);
    this.cells = this.heat.layers.map((_, row) => this.heat.step.map((_, column) => { // the worst of all kinds, and which
      let worst = { value: null, kind: "" };
      for (const kind of kinds) {
        const value = heatValue(this.heat.kinds[kind][this.metric][row], column);
        if (value !== null && (worst.value === null || value > worst.value)) worst = { value, kind };
      }
      return worst;
    }));
    this.range = HEAT_MAPS[this.metric].range || this.measure();
    for (const cell of this.cells.flat()) cell.colour = this.colour(cell.value);
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
    // a picture of one pixel a layer, stretched by the page as the curves are
    const width = Math.max(1, Math.round(f.right - f.left));
    const canvas = element("canvas", { width, height: layers.length, role: "img", "aria-label": this.title });
    const place = { left: f.left / f.width, top: f.top / this.height, width: (f.right - f.left) / f.width, height: (f.bottom - f.top) / this.height };
    for (const [side, share] of Object.entries(place)) canvas.style[side] = 100 * share + "%";
    const picture = canvas.getContext("2d").createImageData(width, layers.length);
    for (let x = 0, column = 0; x < width; ++x) {
      const value = f.value(f.left + x + 0.5);
      while (column < columns.length && columns[column] < value) ++column; // a record stands for the steps before it
      if (column === columns.length) break;
      for (let row = 0; row < layers.length; ++row) picture.data.set(this.cells[row][column].colour, 4 * (row * width + x));
    }
    canvas.getContext("2d").putImageData(picture, 0, 0);
    this.plot.prepend(canvas);
  }

  colour(value) { // red, green, blue, opacity
    if (value === null) return [0, 0, 0, 0];
    if (value === 0) return [128, 128, 128, 40];
    return [...heatColour(Math.log(value / this.range[0]) / Math.log(this.range[1] / this.range[0])), 255];
  }

  measure() { // the colours' range
    let low = Infinity, high = 0;
    for (const { value } of this.cells.flat()) if (value) [low, high] = [Math.min(low, value), Math.max(high, value)];
    return high > low ? [low, high] : [1e-3, 1];
  }

  tell(x, y) {
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
  const stops = HEAT_COLOURS.map((c, i) => `${c} ${((100 * i) / (HEAT_COLOURS.length - 1)).toFixed(0)}%`).join(",");
  return element("span", { class: "key" }, format(range[0]), element("span", { class: "ramp", style: `background:linear-gradient(90deg,${stops})` }), format(range[1]), " (logarithmic; grey: none)");
}

function fp8Panels() {
  const section = byId("fp8");
  const quantized = data.runs.filter((run) => run.fp8.step.length || run.heat.step.length);
  section.replaceChildren(element("h2", { id: "fp8-title" }, "FP8 health"));
  if (!quantized.length) {
    section.append(element("p", { class: "note" }, several() ? "None of these runs quantized anything." : `Nothing was quantized: this run was in ${data.runs[0].precision}.`));
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
      select("tensors", [["", "the worst of a layer"], ...Object.keys(heat.kinds).sort().map((k) => [k, k])], view.heatKind, (v) => { view.heatKind = v; })));
    section.append(element("p", { class: "note" }, `${several() ? data.runs[view.heatRun].name + ". " : ""}Layers from top to bottom; ` +
      (heat.bucket > 1 ? `a cell is the worst of up to ${heat.bucket} steps' records.` : "a cell is a record, drawn over the steps since the one before it.")));
    const rows = heat.layers.length, height = Math.round(Math.min(Math.max(rows * 12, 60), 260)) + MARGIN.top + MARGIN.bottom;
    for (const metric of Object.keys(HEAT_MAPS)) {
      const panel = new HeatPanel(view, { title: HEAT_MAPS[metric].title, metric, heat, height, covered: true });
      panel.caption.append(rampNodes(panel.range, HEAT_MAPS[metric].format));
      panel.node.id = "heat-" + metric;
      panels.push(panel);
    }
  } else {
    section.append(element("p", { class: "note" }, "No map over the layers: it needs a run with --fp8_detail."));
  }
  const shares = { worst_saturated: ["Worst saturated share of a tensor", "var(--c1)"], worst_flushed: ["Worst flushed share of a tensor", "var(--c0)"] };
  for (const [column, [title, colour]] of Object.entries(shares)) {
    if (!data.runs.some((run) => run.fp8[column])) continue;
    panels.push(new CurvePanel(view, { title, height: 112, zero: true, format: formatShare, tick: (v) => formatShare(v),
      series: ofAllRuns((run, i) => series(run, i, run.fp8, column, { name: column.replace("_", " "), colour })) }));
  }
  if (data.runs.some((run) => run.fp8.fwd_scale))
    panels.push(new CurvePanel(view, { title: "Scales", height: 128, log: "always", tick: (v) => formatCount(v),
      keys: several() ? [words("geometric means; dashed: gradients")] : [key("var(--c0)", "activations and weights"), key("var(--c1)", "gradients"), words("geometric means")],
      series: () => data.runs.flatMap((run, i) => {
        const forward = series(run, i, run.fp8, "fwd_scale", { name: "activations and weights" });
        const backward = series(run, i, run.fp8, "bwd_scale", { name: "gradients", colour: "var(--c1)" });
        if (several() && backward) Object.assign(backward, { name: run.name + ", gradients", dash: "5 3" });
        return [forward, backward].filter(Boolean);
      }) }));
  if (data.runs.some((run) => run.fp8.blocks_in_bf16 && Math.max(...run.fp8.blocks_in_bf16.mean) > 0))
    panels.push(new CurvePanel(view, { title: "Blocks in BF16", height: 100, zero: true, whole: true, series: ofAllRuns((run, i) => series(run, i, run.fp8, "blocks_in_bf16", { name: "blocks" })) }));
  section.append(...panels.map((panel) => panel.node));
  return panels;
}

// ---- samples ----

function buildSamples() {
  const section = byId("samples");
  section.replaceChildren(element("h2", { id: "samples-title" }, "Samples"));
  const steps = [...new Set(data.runs.flatMap((run) => run.samples.map((s) => s.step)))].sort((a, b) => a - b);
  if (!steps.length) {
    section.append(element("p", { class: "note" }, "None was written (--sample_freq, --sample_tokens)."));
    return;
  }
  const texts = element("div", { class: "texts" }), label = element("output", {});
  const show = (index) => {
    const step = steps[index];
    label.textContent = `step ${grouped(step)}`;
    texts.replaceChildren(...data.runs.map((run, i) => {
      const before = run.samples.filter((s) => s.step <= step);
      if (!before.length) return null;
      const one = last(before);
      return element("div", {}, several() && element("div", { class: "note" }, swatch(i), ` ${run.name}, step ${grouped(one.step)}`), element("blockquote", {}, one.text));
    }).filter(Boolean));
  };
  const start = view.sample === null ? steps.length - 1 : Math.max(steps.findIndex((s) => s >= view.sample), 0);
  const slider = element("input", { type: "range", min: 0, max: steps.length - 1, step: 1, value: start, "aria-label": "Step of the sample",
    oninput: (event) => { const i = Number(event.target.value); view.sample = i === steps.length - 1 ? null : steps[i]; show(i); } });
  show(start);
  const written = data.runs.reduce((sum, run) => sum + run.samples_written, 0), kept = data.runs.reduce((sum, run) => sum + run.samples.length, 0);
  section.append(element("div", { class: "controls" }, steps.length > 1 && slider, label, kept < written && element("span", { class: "soft" }, `${kept} of ${written} are kept here`)),
    element("div", { class: "only-screen" }, texts));
  // on paper: how they improved, in up to five steps
  const chosen = [...new Set([0, 0.25, 0.5, 0.75, 1].map((share) => steps[Math.round(share * (steps.length - 1))]))];
  section.append(element("div", { class: "only-print" }, ...data.runs.flatMap((run) => run.samples.filter((s) => chosen.includes(s.step)).map((s) =>
    element("div", {}, element("div", { class: "note" }, `${several() ? run.name + ", " : ""}step ${grouped(s.step)}`), element("blockquote", {}, s.text))))));
}

// ---- settings and machine ----

const settingText = (value) => (value === "" ? "(empty)" : value === true ? "on" : value === false ? "off" : value === null ? "–" : String(value));
const table = (...rows) => element("div", { class: "scroll" }, element("table", { class: "data" }, ...rows));
const head = (...titles) => element("tr", {}, ...titles.map((t) => element("th", {}, t)));

function settingTables(settings) { // one for each group, set in columns
  const groups = [...new Set(settings.map((s) => s.group))];
  return element("div", { class: "columns" }, ...groups.map((group) => element("table", { class: "data" }, element("colgroup", {}, element("col", { class: "wide" }), element("col", { class: "wide" }), element("col")), head(group, "", "default"),
    ...settings.filter((s) => s.group === group).map((s) => element("tr", { class: s.differs === "yes" ? "differs" : "" },
      element("td", { class: "name" }, s.name), element("td", { class: "value" }, settingText(s.value)),
      element("td", { class: "soft" }, s.differs ? settingText(s.default) : "same"))))));
}

function buildSettings() {
  const section = byId("settings");
  section.replaceChildren(element("h2", { id: "settings-title" }, several() ? "Differences" : "Settings"));
  if (several()) {
    const names = [...new Set(data.runs.flatMap((run) => run.settings.map((s) => s.name)))];
    const differing = names.filter((n) => n !== "run_name" && new Set(data.runs.map((run) => JSON.stringify(option(run, n)))).size > 1);
    const machine = ["device", "host", "precision", "version", "parameters", "max_steps", "tokens_per_step"].filter((n) => new Set(data.runs.map((run) => JSON.stringify(run[n]))).size > 1);
    const rows = [...machine.filter((n) => !differing.includes(n)).map((n) => [n, data.runs.map((run) => run[n])]), ...differing.map((n) => [n, data.runs.map((run) => option(run, n))])];
    section.append(rows.length
      ? table(element("tr", {}, element("th", {}, "option"), ...data.runs.map((run, i) => element("th", {}, swatch(i), " " + run.name))),
        ...rows.map(([name, values]) => element("tr", {}, element("td", { class: "name" }, name), ...values.map((v) => element("td", { class: "value" }, settingText(v))))))
      : element("p", { class: "note" }, "These runs have the same settings."));
  }
  for (const run of data.runs) {
    const differ = run.settings.filter((s) => s.differs);
    const all = element("details", {}, element("summary", {}, `${several() ? run.name + ": " : ""}all ${run.settings.length} settings`), settingTables(run.settings));
    if (!several()) {
      section.append(element("p", { class: "note" }, "What is not as by default: in bold, what was given. Where the default is auto, the program may have chosen the value itself: the log does not tell."), settingTables(differ));
    }
    section.append(all);
  }
}

function buildMachine() {
  const section = byId("machine");
  const { runs } = data;
  const row = (name, cells) => element("tr", {}, element("td", { class: "name" }, name), ...cells.map((c) => element("td", { class: "value" }, c)));
  const rows = [["device", "device"], ["host", "host"], ["CPU threads", "cpu_threads"], ["program", "version"]].map(([name, field]) => row(name, runs.map((run) => settingText(run[field]))));
  for (const [field, [name, format]] of Object.entries(MACHINE_NAMES)) {
    if (!runs.some((run) => run.machine[field])) continue;
    const share = field === "gpu_throttled" || field === "gpu_power_capped";
    rows.push(row(name, runs.map((run) => {
      const of = run.machine[field];
      return !of ? "–" : share ? `${format(of.mean)} of the time` : `${format(of.mean)} (${format(of.min)} to ${format(of.max)})`;
    })));
  }
  section.replaceChildren(element("h2", { id: "machine-title" }, several() ? "Machines" : "Machine"),
    table(several() && element("tr", {}, element("th", {}, ""), ...runs.map((run, i) => element("th", {}, swatch(i), " " + run.name))), ...rows));
  for (const run of runs.filter((one) => one.lives.length > 1))
    section.append(element("p", { class: "note" }, `${several() ? run.name + " was" : "Was"} trained in ${run.lives.length} parts:`),
      table(head("part", "from step", "began", "on"), ...run.lives.map((life, i) => element("tr", {}, element("td", {}, `${i + 1}`), element("td", {}, grouped(life.step)),
        element("td", {}, String(life.timestamp).replace("T", " ").replace(/\.\d+Z$/, " UTC")), element("td", { class: "value" }, `${life.host}, ${life.device}`)))));
}

// ---- the whole page ----

function renderPanels(width = null) {
  for (const panel of view.panels) panel.render(width || Math.max(260, Math.floor(panel.plot.clientWidth)));
  byId("reset").disabled = view.from === null;
  if (view.cursor === null) byId("tooltip").hidden = true;
}

function buildPanels() {
  const curves = curvePanels();
  byId("curves").replaceChildren(several() ? element("div", { class: "legend print-legend", style: "display:none" }, ...data.runs.map((run, i) => element("span", {}, swatch(i), " " + run.name))) : "", ...curves.map((panel) => panel.node));
  view.panels = [...curves, ...fp8Panels()];
  renderPanels();
}

function build() {
  buildHeader();
  buildToolbar();
  buildPanels();
  buildSamples();
  buildSettings();
  buildMachine();
  byId("footer").replaceChildren(`bin/report, from metrics.jsonl; last line ${data.runs.map((run) => run.last_timestamp).sort().pop()}. Times are of training, without pauses. `,
    element("span", { class: "only-screen" }, "Drag in a curve to zoom, double click to see all; with the keyboard: Tab to a curve, arrows, plus, minus, 0."));
  live("");
}

// ---- while the run trains ----

function live(problem) {
  const running = data.runs.some((run) => run.state === "running");
  byId("live").textContent = data.refresh.how === "none" ? "" : problem || (running ? "live" : "");
}

async function fetchMore() {
  try {
    const answer = await fetch("data.json?have=" + data.version);
    if (answer.status === 200) {
      const refresh = data.refresh;
      data = { ...(await answer.json()), refresh };
      const open = [...document.querySelectorAll("details")].map((d) => d.open);
      build();
      document.querySelectorAll("details").forEach((d, i) => { d.open = open[i] || false; });
    } else if (answer.status !== 204) {
      live((await answer.text()).trim());
    }
  } catch (error) {
    live("bin/report does not answer");
  }
}

const REMEMBERED = ["axis", "smoothing", "lossRange", "from", "to", "heatRun", "heatKind", "sample"];

function followFile() { // a file cannot ask for more: it is loaded again, and the view outlives that
  const place = "report " + location.pathname;
  setTimeout(() => {
    const kept = Object.fromEntries(REMEMBERED.map((name) => [name, view[name]]));
    sessionStorage.setItem(place, JSON.stringify({ ...kept, hidden: [...view.hidden] }));
    location.reload();
  }, 1000 * Math.max(1, data.refresh.seconds));
}

function recallView() {
  const kept = JSON.parse(sessionStorage.getItem("report " + location.pathname) || "null");
  if (!kept) return;
  sessionStorage.removeItem("report " + location.pathname);
  Object.assign(view, kept, { hidden: new Set(kept.hidden) });
}

try { recallView(); } catch (error) { /* a browser that keeps nothing for files: the view begins anew */ }
build();
if (data.refresh.how === "fetch") setInterval(fetchMore, 1000 * data.refresh.seconds);
if (data.refresh.how === "reload") followFile();
let shownWidth = byId("curves").clientWidth;
addEventListener("resize", () => {
  if (byId("curves").clientWidth === shownWidth) return; // a phone's address bar
  shownWidth = byId("curves").clientWidth;
  renderPanels();
});
addEventListener("beforeprint", () => renderPanels(680));
addEventListener("afterprint", () => renderPanels());
