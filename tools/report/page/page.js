"use strict";
// The page of one run or of several, from what tools/report/page_data.cpp put into it.

const DASHES = ["", "7 3", "2 3"]; // after eight runs the colours begin again, with another line
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
  closeGap() { return data.comparison.groups.slice(1).some((group) => group.train[this.axis].x.length >= 40); },
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
    if (series.moment) return series.moment(i); // of a point that is no step
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
  if (data.comparison) return header.replaceChildren(...comparisonHeader());
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
  const calm = (values) => (reach > 0 && values && data.comparison ? smoothed(values, reach) : values); // a band over seeds
  return {
    run: run.name, name: several() ? run.name : more.name || column, colour: several() ? colourOf(index) : more.colour || "var(--c0)",
    dash: several() ? dashOf(index) : "", kind: more.kind || "line", table, x: table[view.axis], y: mean, low: calm(min), high: calm(max),
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
  const thinned = data.comparison ? words(bandWords(bucket)) : bucket > 1 ? words(`a point: up to ${bucket} steps, the band their least and greatest`) : null;
  const panels = [new CurvePanel(view, {
    title: "Loss", label: "Loss against steps, tokens or time; arrow keys move the cursor, plus and minus zoom, 0 shows the whole run", height: 300,
    keys: [several() ? words("nats per token; solid: training, dashed with points: validation") : key("var(--c0)", "training"),
      !several() && any("validations", "val_loss") ? key("var(--c1)", "validation") : null,
      several() ? null : words("nats per token"), thinned].filter(Boolean),
    series: lossSeries, marks, empty: "no step yet", close: () => view.closeLoss(),
  })];
  panels[0].node.id = "loss";
  if (data.comparison) panels.push(gapPanel());
  const add = (column, title, options) => {
    if (!any("steps", column)) return;
    panels.push(new CurvePanel(view, { title, height: 128, marks, series: ofAllRuns((run, i) => series(run, i, run.steps, column, options)), ...options }));
  };
  add("lr", "Learning rate", { zero: true, name: "learning rate" });
  add("adamw_lr", "AdamW's learning rate", { zero: true, name: "learning rate", keys: [words("of all but the blocks' matrices, which Muon updates")] });
  add("update_norm", "Update norm, matrices", { smooth: true, zero: true, name: "norm", keys: [words("Muon, without decay")] });
  add("adamw_update_norm", "Update norm, all else", { smooth: true, zero: true, name: "norm", keys: [words("AdamW, without decay")] });
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
  byId("footer").replaceChildren(`${data.comparison ? "bin/compare" : "bin/report"}, from metrics.jsonl; last line ${data.runs.map((run) => run.last_timestamp).sort().pop()}. Times are of training, without pauses. `,
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
