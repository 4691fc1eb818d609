"use strict";
// Events on a time line.

const EVENT_KINDS = { // in the order of the lanes
  resume: { name: "resumed", color: "var(--c0)" }, skip: { name: "skipped", color: "var(--c1)" },
  bad_data: { name: "bad data", color: "var(--c3)" }, fallback: { name: "to BF16", color: "var(--c6)" },
  fp8_lag: { name: "scale lags", color: "var(--c5)" },
  throttle: { name: "throttled", color: "var(--c4)" }, save: { name: "saved", color: "var(--c2)" },
  save_failed: { name: "not saved", color: "var(--bad)" },
};

const kindOf = (kind) => EVENT_KINDS[kind] || { name: kind, color: "var(--c7)" }; // also those of later versions

// One lane per kind of event, one row per run in it.
class EventPanel extends Panel {
  rows() { return data.runs.length; }
  lane(kind) { return this.kinds.indexOf(kind); }

  draw(svg, f) {
    this.spots = [];
    this.kinds.forEach((kind, lane) => {
      const top = f.top + lane * this.laneHeight;
      svg.append(shape("text", { x: f.left - 6, y: top + this.laneHeight / 2 + 4, "text-anchor": "end" }, kindOf(kind).name));
      svg.append(shape("line", { class: "grid", x1: f.left, x2: f.right, y1: top + this.laneHeight, y2: top + this.laneHeight }));
    });
    data.runs.forEach((run, row) => {
      if (view.hidden.has(run.name)) return;
      const height = (this.laneHeight - 5) / this.rows();
      for (const event of run.events) {
        const from = f.x(event[view.axis]), to = f.x(event.to[view.axis]);
        if (to < f.left || from > f.right) continue;
        const y = f.top + this.lane(event.kind) * this.laneHeight + 2.5 + row * height;
        const color = several() ? colorOf(row) : kindOf(event.kind).color;
        this.inside.append(shape("rect", { x: from - 1.5, y, width: Math.max(3, to - from), height, rx: 1, style: `fill:${color}` }));
        this.spots.push({ from, to, y, height, event, run });
      }
    });
  }

  stops() { return data.runs.filter((r) => !view.hidden.has(r.name)).flatMap((r) => r.events.map((e) => e[view.axis])).sort((a, b) => a - b); }

  tooltip(x, y) {
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
  return `${several() ? run.name + ", " : ""}${steps}: ${kindOf(event.kind).name}${event.count > 1 ? ` ${grouped(event.count)} times, first` : ""}. ${event.text}`;
}

function eventPanel() {
  const found = new Set(data.runs.flatMap((run) => run.events.map((event) => event.kind)));
  if (!found.size) return null;
  const kinds = [...Object.keys(EVENT_KINDS).filter((k) => found.has(k)), ...[...found].filter((k) => !EVENT_KINDS[k])];
  const laneHeight = Math.max(17, 5 + 6 * data.runs.length);
  const panel = new EventPanel(view, { title: "Events", label: "Events; arrow keys move between them", kinds, laneHeight, height: MARGIN.top + kinds.length * laneHeight + MARGIN.bottom });
  panel.node.id = "events";
  const lines = data.runs.flatMap((run) => run.events.map((event) => [event.step, eventText(event, run)])).sort((a, b) => a[0] - b[0]);
  panel.node.append(element("details", {}, element("summary", {}, lines.length === 1 ? "the event as text" : `all ${lines.length} events as text`), ...lines.slice(0, 1000).map((l) => element("div", { class: "note" }, l[1]))));
  return panel;
}
