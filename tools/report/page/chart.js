"use strict";
// Panels with a common x axis: curves, events and heat maps. They share one view (axis, zoom, cursor): the same moment has
// the same x position in all panels.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 62, right: 14, top: 8, bottom: 22 };

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const note = (...content) => element("p", { class: "note" }, ...content);

function shape(tag, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
}

// ---- finding points ----

function nearest(xs, x) { // index; xs ascending
  let low = 0, high = xs.length - 1;
  if (high < 0) return -1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : low;
}

function visible(xs, from, to) { // [first, last], one point beyond either edge, so that lines reach it
  let first = 0, last = xs.length - 1;
  while (first < last && xs[first + 1] < from) ++first;
  while (last > first && xs[last - 1] > to) --last;
  return [first, last];
}

// Local linear regression with triangular weights over 2 * reach points on either side. In the interior it equals the
// weighted mean (no lag). At both ends the window is one-sided and the slope is fitted, so the ends are smoothed alike.
const smoothCache = new WeakMap(); // values -> { reach, result }: panels ask again at every mouse move

function smoothed(values, reach) {
  if (reach < 1) return values;
  const cached = smoothCache.get(values);
  if (cached && cached.reach === reach) return cached.result;
  const side = 2 * reach;
  const result = values.map((value, i) => {
    if (value === null) return null;
    let w0 = 0, w1 = 0, w2 = 0, y0 = 0, y1 = 0; // moments of the weights, and of weights times values
    for (let k = Math.max(-side, -i); k <= side && i + k < values.length; ++k) {
      const y = values[i + k], w = side + 1 - Math.abs(k);
      if (y === null) continue;
      w0 += w; w1 += w * k; w2 += w * k * k; y0 += w * y; y1 += w * k * y;
    }
    const determinant = w0 * w2 - w1 * w1;
    return determinant > 0 ? (w2 * y0 - w1 * y1) / determinant : y0 / w0;
  });
  smoothCache.set(values, { reach, result });
  return result;
}

// ---- a panel ----

// options: { title, keys: [nodes], height, label: for screen readers, covered: no grid lines }
// Subclasses define draw(svg, frame), and may define tooltip(x, y) -> { x, content } and stops() -> [x], the positions for
// the arrow keys.
class Panel {
  constructor(view, options) {
    Object.assign(this, { height: 130 }, options);
    this.view = view;
    this.plot = element("div", { class: "plot" });
    this.caption = element("figcaption", {}, element("span", {}, this.title), ...(this.keys || []));
    this.node = element("figure", { class: "panel", tabindex: 0, role: "group", "aria-label": this.label || this.title }, this.caption, this.plot);
    this.listen();
  }

  stops() { return []; }

  tooltip() { return null; }

  frame() {
    const width = this.width;
    const [from, to] = this.view.range();
    const left = MARGIN.left, right = width - MARGIN.right, top = MARGIN.top, bottom = this.height - MARGIN.bottom;
    return {
      width, left, right, top, bottom, from, to,
      x: (v) => left + ((v - from) / (to - from)) * (right - left),
      value: (px) => from + ((px - left) / (right - left)) * (to - from),
    };
  }

  render(width) {
    this.width = width;
    const svg = shape("svg", { viewBox: `0 0 ${width} ${this.height}`, "aria-hidden": "true" });
    const f = this.frame();
    this.svg = svg;
    this.plot.replaceChildren(svg);
    this.drawXAxis(svg, f);
    const id = "clip" + this.view.panels.indexOf(this);
    const clip = shape("clipPath", { id });
    clip.append(shape("rect", { x: f.left, y: f.top - 3, width: f.right - f.left, height: f.bottom - f.top + 6 }));
    svg.append(clip);
    this.inside = shape("g", { "clip-path": `url(#${id})` });
    this.draw(svg, f);
    svg.append(this.inside);
    this.cursor = shape("line", { class: "cursor", y1: f.top, y2: f.bottom, visibility: "hidden" });
    this.selection = shape("rect", { class: "selection", y: f.top, height: f.bottom - f.top, width: 0, visibility: "hidden" });
    svg.append(this.selection, this.cursor);
  }

  drawXAxis(svg, f) {
    const axis = AXES[this.view.axis];
    const [unit, suffix] = axis.unit(f.to - f.from);
    const { at, step } = ticks(f.from / unit, f.to / unit, (f.right - f.left) / 90, axis.least);
    for (const tick of at) {
      const x = f.x(tick * unit);
      svg.append(shape("line", { class: "grid", x1: x, x2: x, y1: this.covered ? f.bottom : f.top, y2: f.bottom + (this.covered ? 4 : 0) }));
      const near = x > f.right - 24 ? "end" : x < f.left + 12 ? "start" : "middle";
      svg.append(shape("text", { x: near === "end" ? f.right + 8 : x, y: f.bottom + 15, "text-anchor": near }, axis.text(tick, step) + suffix));
    }
    svg.append(shape("line", { class: "frame", x1: f.left, x2: f.right, y1: f.bottom, y2: f.bottom }));
  }

  // ---- input ----

  position(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.width / box.width;
    return { x: (event.clientX - box.left) * scale, y: (event.clientY - box.top) * scale };
  }

  listen() {
    let start = null;
    const inside = (x) => Math.min(Math.max(x, MARGIN.left), this.width - MARGIN.right);
    this.plot.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      start = inside(this.position(event).x);
      this.plot.setPointerCapture(event.pointerId);
    });
    this.plot.addEventListener("pointermove", (event) => {
      const { x, y } = this.position(event);
      if (start !== null && Math.abs(x - start) > 5) {
        this.selection.setAttribute("visibility", "visible");
        this.selection.setAttribute("x", Math.min(start, inside(x)));
        this.selection.setAttribute("width", Math.abs(inside(x) - start));
      }
      this.view.point(this, this.frame().value(inside(x)), y);
    });
    this.plot.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const end = inside(this.position(event).x), f = this.frame();
      const pixels = Math.abs(end - start);
      const [a, b] = [f.value(Math.min(start, end)), f.value(Math.max(start, end))];
      start = null;
      this.selection.setAttribute("visibility", "hidden");
      if (pixels > 5) this.view.zoom(a, b);
    });
    this.plot.addEventListener("pointercancel", () => {
      start = null;
      this.selection.setAttribute("visibility", "hidden");
    });
    this.plot.addEventListener("pointerleave", () => start === null && this.view.point(null));
    this.plot.addEventListener("dblclick", () => this.view.zoom(null, null));
    this.node.addEventListener("blur", () => this.view.point(null));
    this.node.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this;
    const [from, to] = view.range();
    const middle = view.cursor ?? (from + to) / 2, span = to - from;
    const move = (count) => {
      const stops = this.stops().filter((x) => x >= from && x <= to);
      if (!stops.length) return;
      const now = view.cursor === null ? (count > 0 ? -1 : stops.length) : nearest(stops, view.cursor);
      view.point(this, stops[Math.min(Math.max(now + count, 0), stops.length - 1)]);
    };
    const actions = {
      ArrowRight: () => move(event.shiftKey ? 10 : 1), ArrowLeft: () => move(event.shiftKey ? -10 : -1),
      Home: () => move(-1e9), End: () => move(1e9),
      "+": () => view.zoom(middle - span / 4, middle + span / 4), "=": () => view.zoom(middle - span / 4, middle + span / 4),
      "-": () => view.zoom(middle - span, middle + span), 0: () => view.zoom(null, null),
      Escape: () => (view.cursor === null ? view.zoom(null, null) : view.point(null)),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}

// ---- curves ----

// series: { run, name, color, dash, width, x: [..], y: [..], low, high, bucket, kind: "line" | "points", smooth: [..],
// whiskers: draw low and high per point instead of a band, moment(i): tooltip head of a point that is not a step }
class CurvePanel extends Panel {
  constructor(view, options) {
    super(view, options); // also: series() -> [..], format, log: "never" | "always" | "auto", marks() -> [{ x, text }],
    // labels: show the text of the marks, levels: [y] to mark, zero: axis from 0, whole: integer ticks, close() -> bool and
    // fall: see closeRange
  }

  shown() { return this.series().filter((s) => s.x.length > 0 && !this.view.hidden.has(s.run)); }

  stops() { return this.shown().length ? this.shown()[0].x : []; }

  yRange(f) {
    const values = [];
    for (const s of this.shown()) {
      const [first, last] = visible(s.x, f.from, f.to);
      for (let i = first; i <= last; ++i) {
        if (s.x[i] < f.from || s.x[i] > f.to) continue;
        for (const v of [s.y[i], s.low && s.low[i], s.high && s.high[i]]) if (v !== null && v !== undefined && v !== false) values.push(v);
      }
    }
    if (!values.length) return [0, 1, false];
    if (this.close && this.close()) return this.closeRange(f);
    values.sort((a, b) => a - b);
    let low = values[0], high = values[values.length - 1];
    const middle = values[values.length >> 1];
    const log = this.log === "always" ? high > 0 : this.log === "auto" && low > 0 && high > 20 * middle;
    if (log) {
      low = values.find((v) => v > 0);
      if (high < low * 1.05) [low, high] = [low / 2, high * 2];
      return [low / (high / low) ** 0.04, high * (high / low) ** 0.04, true];
    }
    if (this.zero) low = Math.min(low, 0);
    if (high - low < 1e-9 * Math.max(Math.abs(high), 1e-30)) [low, high] = high === 0 ? [0, 1] : [Math.min(0, 2 * high), Math.max(0, 2 * high)];
    const room = 0.05 * (high - low);
    return [this.zero && low === 0 ? 0 : low - room, high + room, false];
  }

  // The y range after the first fall: the smoothed curves and 99 % of the single steps, without the first 5 % in view. If
  // the whole run is in view, also without the first 85 % of its drop (at most half of the run).
  closeRange(f) {
    const lines = [], steps = [];
    for (const s of this.shown()) {
      const span = Math.min(f.to, s.x[s.x.length - 1]) - f.from, line = s.smooth || s.y;
      let from = f.from + 0.05 * span;
      if (this.view.from === null && this.fall) {
        const known = line.filter((v) => v !== null), bottom = known.reduce((a, b) => Math.min(a, b), Infinity);
        const fallen = line.findIndex((v) => v !== null && v <= known[0] - 0.85 * (known[0] - bottom));
        if (fallen >= 0) from = Math.max(from, Math.min(s.x[fallen], f.from + 0.5 * span));
      }
      for (let i = 0; i < s.x.length; ++i) {
        if (s.x[i] < from || s.x[i] > f.to || s.y[i] === null) continue;
        lines.push((s.smooth || s.y)[i]);
        steps.push(s.low ? s.low[i] : s.y[i], s.high ? s.high[i] : s.y[i]);
      }
    }
    if (!lines.length) return [0, 1, false];
    steps.sort((a, b) => a - b);
    const at = (share) => steps[Math.round(share * (steps.length - 1))];
    let low = lines.reduce((a, b) => Math.min(a, b), at(0.005)), high = lines.reduce((a, b) => Math.max(a, b), at(0.995));
    if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
    return [low - 0.05 * (high - low), high + 0.05 * (high - low), false];
  }

  draw(svg, f) {
    let [low, high, log] = this.yRange(f);
    for (const level of this.levels || []) [low, high] = [Math.min(low, 1.2 * level), Math.max(high, 1.2 * level)];
    const map = log ? Math.log : (v) => v;
    const y = (v) => f.bottom - ((map(Math.max(v, log ? low : -Infinity)) - map(low)) / (map(high) - map(low))) * (f.bottom - f.top);
    const count = (f.bottom - f.top) / (f.bottom - f.top > 150 ? 36 : 22); // minimum distance in pixels
    const linear = log ? null : ticks(low, high, count, this.whole ? 1 : 0);
    for (const tick of log ? logTicks(low, high, count) : linear.at) {
      svg.append(shape("line", { class: "grid", x1: f.left, x2: f.right, y1: y(tick), y2: y(tick) }));
      svg.append(shape("text", { x: f.left - 6, y: y(tick) + 4, "text-anchor": "end" }, (this.tick || tickText)(tick, linear ? linear.step : 0)));
    }
    this.caption.classList.toggle("log", log);
    this.caption.classList.toggle("cut", Boolean(this.close && this.close()));
    this.drawMarks(f);
    for (const level of this.levels || [])
      this.inside.append(shape("line", { class: level === 0 ? "frame" : "mark", x1: f.left, x2: f.right, y1: y(level), y2: y(level) }));
    const shown = this.shown();
    for (const s of shown) this.drawBand(s, f, y); // below all lines
    for (const s of shown) this.drawLine(s, f, y);
    if (!shown.length)
      svg.append(shape("text", { x: (f.left + f.right) / 2, y: (f.top + f.bottom) / 2, "text-anchor": "middle" }, this.empty || "nothing yet"));
  }

  drawMarks(f) {
    let free = f.left; // where the next label fits
    for (const { x, text } of this.marks ? this.marks() : []) {
      const px = f.x(x);
      if (px < f.left - 1 || px > f.right + 1) continue;
      this.inside.append(shape("line", { class: "mark", x1: px, x2: px, y1: f.top, y2: f.bottom }));
      if (!this.labels) continue;
      const width = 6.2 * text.length + 8, before = px + width > f.right;
      const from = before ? px - width : px;
      if (from < free) continue;
      this.inside.append(shape("text", { class: "mark-label", x: before ? px - 4 : px + 4, y: f.top + 10, "text-anchor": before ? "end" : "start" }, text));
      free = from + width;
    }
  }

  drawBand(s, f, y) {
    if (!s.low || s.whiskers) return;
    const [first, last] = visible(s.x, f.from, f.to);
    let d = "";
    for (let i = first; i <= last; ++i) if (s.high[i] !== null) d += (d ? "L" : "M") + f.x(s.x[i]).toFixed(1) + " " + y(s.high[i]).toFixed(1);
    for (let i = last; i >= first; --i) if (s.low[i] !== null) d += "L" + f.x(s.x[i]).toFixed(1) + " " + y(s.low[i]).toFixed(1);
    // the outline keeps a spike of one bucket visible where the band is narrower than a pixel
    this.inside.append(shape("path", { d: d + "Z", style: `fill:${s.color};stroke:${s.color}`, "fill-opacity": 0.22, "stroke-opacity": 0.3, "stroke-width": 0.7 }));
  }

  drawLine(s, f, y) {
    const [first, last] = visible(s.x, f.from, f.to);
    const path = (values) => {
      let out = "", pen = false;
      for (let i = first; i <= last; ++i) {
        if (values[i] === null) { pen = false; continue; }
        out += (pen ? "L" : "M") + f.x(s.x[i]).toFixed(1) + " " + y(values[i]).toFixed(1);
        pen = true;
      }
      return out;
    };
    const line = (values, more) => this.inside.append(shape("path", { d: path(values), fill: "none", style: `stroke:${s.color}`, "stroke-linejoin": "round", ...more }));
    const dash = s.dash ? { "stroke-dasharray": s.dash } : {};
    if (s.whiskers && s.low) {
      for (let i = first; i <= last; ++i) {
        const x = f.x(s.x[i]);
        this.inside.append(shape("path", { d: `M${x} ${y(s.low[i])}V${y(s.high[i])}M${x - 3} ${y(s.low[i])}h6M${x - 3} ${y(s.high[i])}h6`, style: `stroke:${s.color}`, "stroke-width": 1.3 }));
      }
    } else if (s.smooth && !s.low) {
      line(s.y, { "stroke-width": 1, "stroke-opacity": 0.35 });
    }
    line(s.smooth || s.y, { "stroke-width": s.width || (s.kind === "points" ? 1.2 : 1.9), ...dash });
    if (s.kind === "points" || last - first < 2) {
      const radius = last - first > 150 ? 1.2 : last - first > 60 ? 1.8 : 2.8;
      for (let i = first; i <= last; ++i)
        if (s.y[i] !== null) this.inside.append(shape("circle", { cx: f.x(s.x[i]), cy: y(s.y[i]), r: radius, style: `fill:${s.color}` }));
    }
  }

  tooltip(x) {
    const shown = this.shown();
    if (!shown.length) return null;
    const format = this.format || formatValue;
    const lead = shown[0], at = nearest(lead.x, x);
    const rows = shown.map((s) => {
      const i = nearest(s.x, lead.x[at]);
      const elsewhere = s.x[i] !== lead.x[at] ? ` at ${this.view.where(s.x[i])}` : "";
      const span = s.low && s.low[i] !== null ? ` (${format(s.low[i])} to ${format(s.high[i])})` : "";
      const smooth = s.smooth && s.smooth !== s.y && s.smooth[i] !== null ? `, smoothed ${format(s.smooth[i])}` : "";
      return element("tr", {},
        element("td", {}, element("span", { class: "swatch", style: `color:${s.color}` }), " " + s.name),
        element("td", {}, element("b", { "data-series": s.name }, format(s.y[i])), span + smooth + elsewhere));
    });
    return { x: lead.x[at], content: [element("div", { class: "soft" }, this.view.moment(lead, at)), element("table", {}, ...rows)] };
  }
}
