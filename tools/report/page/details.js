"use strict";
// Samples, settings and machine.

const MACHINE_NAMES = {
  gpu_utilization: ["GPU busy", (v) => trimmed((100 * v).toFixed(1)) + " %"], gpu_memory_gb: ["Memory in use", (v) => v.toFixed(1) + " GB"],
  gpu_sm_clock_mhz: ["SM clock", (v) => grouped(v) + " MHz"], gpu_memory_clock_mhz: ["Memory clock", (v) => grouped(v) + " MHz"],
  gpu_power_watts: ["Power", (v) => grouped(v) + " W"], gpu_temperature_c: ["Temperature", (v) => grouped(v) + " °C"],
  gpu_throttled: ["Throttled by heat or hardware", (v) => trimmed((100 * v).toFixed(1)) + " %"],
  gpu_power_capped: ["At the power limit", (v) => trimmed((100 * v).toFixed(1)) + " %"],
};

// ---- samples ----

function buildSamples() {
  const section = byId("samples");
  section.replaceChildren(element("h2", { id: "samples-title" }, "Samples"));
  const steps = [...new Set(data.runs.flatMap((run) => run.samples.map((s) => s.step)))].sort((a, b) => a - b);
  if (!steps.length) {
    section.append(note("No samples (--sample_freq, --sample_tokens)."));
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
  section.append(element("div", { class: "controls" }, steps.length > 1 && slider, label, kept < written && element("span", { class: "soft" }, `${kept} of ${written} samples are on this page`)),
    element("div", { class: "only-screen" }, texts));
  // in print: up to five samples over the run
  const chosen = [...new Set([0, 0.25, 0.5, 0.75, 1].map((share) => steps[Math.round(share * (steps.length - 1))]))];
  section.append(element("div", { class: "only-print" }, ...data.runs.flatMap((run) => run.samples.filter((s) => chosen.includes(s.step)).map((s) =>
    element("div", {}, element("div", { class: "note" }, `${several() ? run.name + ", " : ""}step ${grouped(s.step)}`), element("blockquote", {}, s.text))))));
}

// ---- settings and machine ----

const settingText = (value) => (value === "" ? "(empty)" : value === true ? "on" : value === false ? "off" : value === null ? "–" : String(value));
const table = (...rows) => element("div", { class: "scroll" }, element("table", { class: "data" }, ...rows));
const head = (...titles) => element("tr", {}, ...titles.map((t) => element("th", {}, t)));

function settingTables(settings) { // one table per group of options, in columns
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
      : note("These runs have the same settings."));
  }
  for (const run of data.runs) {
    const differ = run.settings.filter((s) => s.differs);
    const all = element("details", {}, element("summary", {}, `${several() ? run.name + ": " : ""}all ${run.settings.length} settings`), settingTables(run.settings));
    if (!several()) {
      section.append(note("Settings that differ from their default (bold). Where the default is auto, the user or the program chose the value; the log does not say which."), settingTables(differ));
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
    section.append(note(`${several() ? run.name + ": starts" : "Starts"} of the run:`),
      table(head("start", "from step", "time", "machine"), ...run.lives.map((life, i) => element("tr", {}, element("td", {}, `${i + 1}`), element("td", {}, grouped(life.step)),
        element("td", {}, String(life.timestamp).replace("T", " ").replace(/\.\d+Z$/, " UTC")), element("td", { class: "value" }, `${life.host}, ${life.device}`)))));
}
