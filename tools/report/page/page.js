"use strict";
// The page of one or several runs. tools/report/page_data.cpp makes its data.

const DASHES = ["", "7 4", "2 3"]; // runs differ in color and dash: a curve under another one shows through its gaps
const DASH_CLASSES = ["", " dash", " dot"];
const byId = (id) => document.getElementById(id);
let data = JSON.parse(byId("data").textContent);
const several = () => data.runs.length > 1;
const colorOf = (index) => `var(--c${index % 8})`;
const dashIndex = (index) => (index + Math.floor(index / 8)) % DASHES.length;
const dashOf = (index) => DASHES[dashIndex(index)];
const last = (list) => list[list.length - 1];

// ---- the view that all panels share ----

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
  closeLoss() { // the default, except for runs too short to have a first fall
    return this.lossRange ? this.lossRange === "close" : data.runs.some((run) => run.steps.rows >= 40);
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
  // Keeps the zoomed part of the first run.
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
    if (series.moment) return series.moment(i); // a point that is not a step
    const table = series.table;
    const from = series.low ? Math.floor((table.step[i] - 1) / table.bucket) * table.bucket + 1 : table.step[i];
    const steps = from < table.step[i] ? `steps ${grouped(from)} to ${grouped(table.step[i])}` : `step ${grouped(table.step[i])}`;
    return `${steps} · ${formatCount(table.tokens[i])} tokens · ${formatSeconds(table.seconds[i])}`;
  },
  point(panel, x, y) { // moves the cursor in all panels and shows the tooltip of one
    const found = panel ? panel.tooltip(x, y) : null;
    const [from, to] = this.range();
    this.cursor = panel ? (found ? found.x : x) : null;
    for (const one of this.panels) {
      const shown = this.cursor !== null && this.cursor >= from && this.cursor <= to;
      one.cursor.setAttribute("visibility", shown ? "visible" : "hidden");
      if (!shown) continue;
      const px = one.frame().x(this.cursor);
      one.cursor.setAttribute("x1", px);
      one.cursor.setAttribute("x2", px);
    }
    const box = byId("tooltip");
    box.hidden = !found;
    if (!found) return;
    box.replaceChildren(...found.content);
    const place = panel.svg.getBoundingClientRect(), width = document.documentElement.clientWidth;
    const px = place.left + (panel.frame().x(this.cursor) / panel.width) * place.width;
    const left = px + 14 + box.offsetWidth < width - 8 ? px + 14 : Math.max(8, px - 14 - box.offsetWidth);
    box.style.left = Math.min(left, Math.max(8, width - 8 - box.offsetWidth)) + scrollX + "px";
    const under = width < 600; // a finger would cover it
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
  const train = recentLoss(run);
  return {
    steps: [grouped(done), `of ${grouped(run.max_steps)}`],
    tokens: [formatCount(steps.tokens.length ? last(steps.tokens) : 0), run.parameters ? formatRatio(last(steps.tokens) / run.parameters) : ""],
    time: [formatSeconds(steps.seconds.length ? last(steps.seconds) : 0), resumedText(run)],
    train: [train.loss === null ? "–" : train.loss.toFixed(4), train.steps === 1 ? "last step" : `mean of the last ${grouped(train.steps)} steps`],
    validation: val.length ? [formatLoss(last(val)), `at step ${grouped(last(validations.step))}`] : ["–", option(run, "eval_freq") === 0 ? "not evaluated (--eval_freq 0)" : "not evaluated"],
    best: best >= 0 ? [formatLoss(lowest[best]), `at step ${grouped(validations.step[best])}`] : ["–", ""],
    speed: [speed ? formatCount(speed) : "–", run.steps.speed_of_light ? `tokens/s, ${(100 * meanOf(run.steps.speed_of_light.mean)).toFixed(0)} % of peak` : "tokens per second"],
    left: run.state === "running" && speed ? [formatSeconds(run.tokens_left / speed), "at the current speed"] : null,
  };
}

// The mean training loss of the last 20 steps; of the last buckets where steps are downsampled.
function recentLoss(run) {
  const { loss, step, bucket } = run.steps;
  if (!loss) return { loss: null, steps: 1 };
  let sum = 0, known = 0, steps = 0;
  for (let i = step.length - 1, taken = 0; i >= 0 && taken < Math.ceil(20 / bucket); --i, ++taken) {
    const size = Math.min(bucket, step[i] - (i > 0 ? step[i - 1] : 0)) || 1; // the last bucket may be incomplete
    steps += size;
    if (loss.mean[i] !== null) [sum, known] = [sum + size * loss.mean[i], known + size];
  }
  return { loss: known > 0 ? sum / known : null, steps };
}

const resumedText = (run) => (run.lives.length < 2 ? "" : run.lives.length === 2 ? "resumed once" : `resumed ${run.lives.length - 1} times`);
const formatLoss = (value) => (value === null ? "NaN" : value.toFixed(4));
const formatRatio = (value) => (value >= 0.01 ? `${value < 10 ? Number(value.toPrecision(2)) : grouped(value)} per parameter` : "");
const meanOf = (list) => { const v = list.filter((x) => x !== null); return v.reduce((a, b) => a + b, 0) / Math.max(v.length, 1); };
const recentSpeed = (run) => {
  const speeds = run.steps.tokens_per_sec ? run.steps.tokens_per_sec.mean : [];
  return speeds.length ? meanOf(speeds.slice(-Math.max(5, Math.round(speeds.length / 20)))) : 0;
};
const option = (run, name) => (run.settings.find((s) => s.name === name) || { value: null }).value;

const STATE_TITLES = {
  running: "a process is training this run", done: "all steps are complete", stopped: "it saved its last step and can resume",
  failed: "it ended without saving its last step", diverged: "it ended on skipped steps or without a finite loss",
};

function stateNode(run) {
  return element("span", { class: "state " + run.state, title: `${STATE_TITLES[run.state] || ""}; last record ${run.last_timestamp}` }, run.state);
}

function buildHeader() {
  const header = byId("header");
  if (data.comparison) return header.replaceChildren(...comparisonHeader());
  if (several()) {
    const columns = ["steps", "tokens", "time", "train", "validation", "best", "speed"];
    const names = { steps: "steps", tokens: "tokens", time: "time", train: `train loss (last ${Math.max(...data.runs.map((run) => recentLoss(run).steps))} steps)`, validation: "validation loss", best: "best", speed: "tokens/s" };
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
  const names = { steps: "Steps", tokens: "Tokens", time: "Time", left: "Time left", train: "Train loss", validation: "Validation loss", best: "Best validation", speed: "Throughput" };
  header.replaceChildren(
    element("div", { class: "title" }, element("h1", {}, run.name), stateNode(run)),
    element("p", { class: "soft" }, [run.model, run.precision, run.device].filter(Boolean).join(" · ")),
    element("dl", { class: "facts" }, ...Object.keys(names).filter((n) => all[n]).map((n) =>
      element("div", {}, element("dt", {}, names[n]), element("dd", {}, all[n][0], all[n][1] && element("small", {}, all[n][1]))))));
}

const swatch = (i) => element("span", { class: "swatch" + DASH_CLASSES[dashIndex(i)], style: `color:${colorOf(i)}` });

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
    choice("x axis", "axis", [["step", "steps"], ["tokens", "tokens"], ["seconds", "time"]], view.axis, (v) => view.changeAxis(v)),
    choice("smoothing", "smoothing", [["none", "none"], ["auto", "some"], ["strong", "more"]], view.smoothing, (v) => { view.smoothing = v; buildPanels(); }),
    choice("loss axis", "loss-axis", [["close", "after the first fall"], ["whole", "full range"]], view.closeLoss() ? "close" : "whole", (v) => { view.lossRange = v; renderPanels(); }),
    element("button", { id: "reset", type: "button", title: "or double-click in a curve", onclick: () => view.zoom(null, null) }, "whole run"),
    ...(legend ? [legend] : []),
    element("span", { id: "live", class: "soft" }));
}

// ---- curves ----

function reachOf(count) { // half of the points on either side that smoothing uses
  if (view.smoothing === "none" || count < 100) return 0; // few points need no smoothing
  return Math.max(2, Math.round(count * (view.smoothing === "strong" ? 0.03 : 0.008)));
}

function series(run, index, table, column, more = {}) {
  if (!table[column]) return null;
  const { mean, min, max } = table[column];
  const [first, end] = visible(table[view.axis], ...view.range()); // a zoomed curve is smoothed less
  const reach = more.smooth ? reachOf(end - first + 1) : 0;
  const bound = (values) => (reach > 0 && values && data.comparison ? smoothed(values, reach) : values); // of a band over seeds
  return {
    run: run.name, name: several() ? run.name : more.name || column, color: several() ? colorOf(index) : more.color || "var(--c0)",
    dash: several() ? dashOf(index) : "", kind: more.kind || "line", table, x: table[view.axis], y: mean, low: bound(min), high: bound(max),
    smooth: reach > 0 ? smoothed(mean, reach) : null,
  };
}

const ofAllRuns = (make) => () => data.runs.map(make).filter(Boolean);
const marks = () => data.runs.filter((r) => !view.hidden.has(r.name)).flatMap((r) => r.events.filter((e) => e.kind === "resume" || e.kind === "fallback")
  .map((e) => ({ x: e[view.axis], text: `${several() ? r.name + " " : ""}${EVENT_KINDS[e.kind].name} at step ${grouped(e.step)}` }))).sort((a, b) => a.x - b.x);
const key = (color, text, dash = "") => element("span", { class: "key" }, element("span", { class: "swatch" + dash, style: `color:${color}` }), text);
const words = (text) => element("span", { class: "key" }, text);

function lossSeries() {
  return data.runs.flatMap((run, i) => {
    const train = series(run, i, run.steps, "loss", { smooth: true, name: "train" });
    const val = series(run, i, run.validations, "val_loss", { kind: "points", name: "validation", color: "var(--c1)" });
    if (several() && val) val.name = run.name + ", validation";
    return [train, val].filter(Boolean);
  });
}

// Training loss minus that of the first run, on the axis of the page: shows what coinciding curves hide. Smoothed after
// the subtraction: the noise of a common batch cancels.
function differenceSeries() {
  const base = data.runs[0].steps;
  if (!base.loss) return [];
  const baseX = base[view.axis], baseLoss = base.loss.mean;
  const baseAt = (x) => {
    if (!baseX.length || x < baseX[0] || x > last(baseX)) return null;
    let i = nearest(baseX, x);
    if (baseX[i] > x) --i;
    if (baseX[i] === x || i + 1 === baseX.length) return baseLoss[i];
    if (baseLoss[i] === null || baseLoss[i + 1] === null) return null;
    return baseLoss[i] + ((x - baseX[i]) / (baseX[i + 1] - baseX[i])) * (baseLoss[i + 1] - baseLoss[i]);
  };
  return data.runs.slice(1).flatMap((run, i) => {
    if (!run.steps.loss) return [];
    const x = run.steps[view.axis], loss = run.steps.loss.mean, reach = reachOf(x.length);
    const y = x.map((at, k) => { const other = baseAt(at); return other === null || loss[k] === null ? null : loss[k] - other; });
    if (!y.some((v) => v !== null)) return [];
    return [{ run: run.name, name: run.name, color: colorOf(i + 1), dash: dashOf(i + 1), kind: "line", x, y, smooth: reach > 0 ? smoothed(y, reach) : null, moment: (k) => `${EQUAL[view.axis]}: ${view.where(x[k])}` }];
  });
}

function differencePanel() {
  const first = data.runs[0].name;
  const panel = new CurvePanel(view, { title: `Training loss minus that of ${first}`, height: 150, series: differenceSeries, format: signed, levels: [0],
    close: () => view.closeLoss(), empty: "no step in common", keys: [words("nats per token; below zero is better")] });
  panel.node.id = "difference";
  return panel;
}

function curvePanels() {
  const any = (table, column) => data.runs.some((run) => run[table][column]);
  const bucket = Math.max(...data.runs.map((run) => run.steps.bucket));
  const points = data.comparison ? words(bandWords(bucket)) : bucket > 1 ? words(`each point: mean of up to ${bucket} steps; band: their min and max`) : null;
  const smooth = data.runs.some((run) => reachOf(run.steps.rows) > 0) ? ", smoothed" : "";
  const pale = smooth && bucket === 1 && !data.comparison ? " (pale: single steps)" : "";
  const panels = [new CurvePanel(view, {
    title: "Loss", label: "Loss against steps, tokens or time; arrow keys move the cursor, plus and minus zoom, 0 shows the whole run", height: 300,
    keys: [several() ? words(`nats per token; thick: training${smooth}${pale}; thin with points: validation`) : key("var(--c0)", `training${smooth}${pale}`),
      !several() && any("validations", "val_loss") ? key("var(--c1)", "validation") : null,
      several() ? null : words("nats per token"), points].filter(Boolean),
    series: lossSeries, marks, labels: true, fall: true, empty: "no step yet", close: () => view.closeLoss(),
  })];
  panels[0].node.id = "loss";
  if (data.comparison) panels.push(gapPanel());
  else if (several()) panels.push(differencePanel());
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
  add("speed_of_light", "Share of peak", { smooth: true, zero: true, name: "share of peak", format: (v) => (v === null ? "–" : (100 * v).toFixed(1) + " %"),
    tick: (v) => trimmed((100 * v).toFixed(1)) + " %", keys: [words("peak: GEMMs, attention and memory traffic at the rates measured alone on this GPU")] });
  if (any("hellaswags", "per_token"))
    panels.push(new CurvePanel(view, { title: "HellaSwag", height: 128, keys: [words("accuracy by loss per token; chance: 25 %")],
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
  byId("footer").replaceChildren(`${data.comparison ? "bin/compare" : "bin/report"}, from metrics.jsonl; last record ${data.runs.map((run) => run.last_timestamp).sort().pop()}. Times exclude pauses between a stop and a resume. `,
    element("span", { class: "only-screen" }, "Drag in a curve to zoom, double-click to reset. Keyboard: Tab to a curve, then arrows, plus, minus, 0."));
  live("");
}

// ---- updates during training ----

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

function followFile() { // reloads the file; sessionStorage keeps the view
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

try { recallView(); } catch (error) { /* no sessionStorage for files: start with the default view */ }
build();
if (data.refresh.how === "fetch") setInterval(fetchMore, 1000 * data.refresh.seconds);
if (data.refresh.how === "reload") followFile();
let shownWidth = byId("curves").clientWidth;
addEventListener("resize", () => {
  if (byId("curves").clientWidth === shownWidth) return; // only the height changed: a phone's address bar
  shownWidth = byId("curves").clientWidth;
  renderPanels();
});
addEventListener("beforeprint", () => renderPanels(680));
addEventListener("afterprint", () => renderPanels());
