// The page's own script: draws figures when they come into view, sorts and filters tables, copies commands.
// Everything it shows was escaped when the page was written; it only ever sets text, never markup.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));

  // ---- figures ----------------------------------------------------------------------------------------------

  /** plotly.js takes a second to read, so it waits until the page is there: it stands in the file as mere text. */
  function loadPlotly() {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly-source").textContent;
    document.head.append(script);
  }

  const KINDS = { u2: Uint16Array, f4: Float32Array, f8: Float64Array };
  const hidden = { groups: new Set(), dashes: new Set() };
  const most = document.getElementById("most"); // how many trials are drawn, the best first
  const drawn = new Map(); // element -> the specification it was drawn from

  function unpacked({ dtype, bdata }) {
    const bytes = Uint8Array.from(atob(bdata), (c) => c.charCodeAt(0));
    return new KINDS[dtype](bytes.buffer);
  }

  /** Typed arrays instead of base64. Done once a figure. */
  function unpack(spec) {
    for (const trace of spec.data) {
      trace.x = unpacked(trace.x);
      trace.y = trace.y ? unpacked(trace.y) : trace.labels;
    }
    return spec;
  }

  const against = document.getElementById("against"); // what curves are drawn against, beside the step
  const AXES = {
    tokens: ["tokens until then", "tokens"], hours: ["hours since the trial's start", "h"],
    gpu_hours: [`${page.unit} of the trial`, page.unit],
  };
  const axes = {};
  for (const [name, trials] of Object.entries(page.axes)) axes[name] = trials.map((knots) => knots && knots.map(unpacked));

  /** Where a step lies on another axis, straight between the steps that are known; not a number beyond them. */
  function along([steps, values], step) {
    let [low, high] = [0, steps.length - 1];
    if (step < steps[low] || step > steps[high]) return NaN;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    const span = steps[high] - steps[low];
    return span ? values[low] + (values[high] - values[low]) * (step - steps[low]) / span : values[low];
  }

  const everyTrial = new Set(page.order);
  const drawnTrials = () => most ? new Set(page.order.slice(0, Number(most.value))) : everyTrial;

  /** The points of a trace that belong to some trials, each point with the text that names its trial. */
  function part(trace, trials, axis) {
    const points = { x: [], y: [], customdata: [] };
    let at = 0;
    for (const [trial, count] of trace.trials) {
      const knots = axis ? axes[axis][trial] : null;
      for (let i = at; trials.has(trial) && (knots || !axis) && i < at + count; i++) {
        points.x.push(knots ? along(knots, trace.x[i]) : trace.x[i]);
        points.y.push(trace.y[i]);
        points.customdata.push(page.trials[trial]);
      }
      at += count;
    }
    return points;
  }

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return {
      text: of("--text"), soft: of("--soft"), grid: of("--line"), panel: of("--panel"), font: of("--font"),
      accent: of("--accent"), groups: page.groups.map((_, i) => of(`--g${i % 8}`)),
    };
  }

  /** Dark for what is low, light for what is high: told apart without colours too. */
  const scale = () => dark.matches
    ? [[0, "#14202c"], [0.5, "#27577f"], [1, "#8cc4ef"]] : [[0, "#f3f7fa"], [0.5, "#8fbbe0"], [1, "#124f86"]];

  /** A trace that is of no trial: it only takes the page's colours. */
  function plain(trace, look) {
    const colour = look[trace.colour] || look.soft;
    const { labels, ...own } = trace;
    if (trace.type === "contour") {
      return { ...own, colorscale: scale(), showscale: true, contours: { coloring: "heatmap" }, line: { width: 0.5 },
        colorbar: { thickness: 10, outlinewidth: 0, tickfont: { color: look.soft } } };
    }
    return { ...own, line: { ...trace.line, color: colour }, marker: { color: colour }, showlegend: false };
  }

  /** Labels of a logarithmic axis: 1, 2 and 5 where few decades are seen, else whole decades. */
  function logTicks(values) {
    let [low, high] = [Infinity, 0];
    for (const v of values) if (v > 0 && v < Infinity) { low = Math.min(low, v); high = Math.max(high, v); }
    const decades = Math.log10(high / low);
    return { dtick: decades < 2.2 && !narrow.matches ? "D2" : Math.max(1, Math.round(decades / 6)) };
  }

  function styled(spec) {
    const look = theme();
    const trials = drawnTrials();
    const thin = trials.size > 30;
    const axis = { gridcolor: look.grid, zerolinecolor: look.grid, linecolor: look.grid, automargin: true };
    const titled = (own, values) => ({
      ...axis, ...own, ...(own.type === "log" ? logTicks(values.flat()) : {}),
      title: { standoff: 8, font: { size: 12, color: look.soft }, ...own.title },
    });
    const axis_of = spec.curve && against && against.value !== "step" ? against.value : null;
    const at = axis_of ? `%{x:.4~s} ${AXES[axis_of][1]}` : "step %{x}";
    const data = spec.data.map((trace) => !trace.trials ? plain(trace, look) : ({
      ...part(trace, trace.all || trace.mode === "markers" ? everyTrial : trials, axis_of),
      type: trace.type, mode: trace.mode, opacity: trace.opacity, connectgaps: false,
      line: { ...trace.line, width: (trace.line || {}).thick || (trace.best ? 2.5 : thin ? 1 : 1.5), color: look.groups[trace.group] },
      marker: { ...trace.marker, color: look.groups[trace.group] },
      hovertemplate: trace.hovertemplate || (trace.mode === "markers"
        ? "%{customdata}<br>%{x:.3g}: <b>%{y:.4~g}</b><extra></extra>" : `%{customdata}<br>${at}: <b>%{y:.4~g}</b><extra></extra>`),
      visible: !hidden.groups.has(trace.group) && !hidden.dashes.has((trace.line || {}).dash),
      showlegend: false,
    }));
    const below = axis_of ? { ...spec.layout.xaxis, title: { text: AXES[axis_of][0] } } : spec.layout.xaxis;
    const layout = {
      ...spec.layout,
      xaxis: titled(below, data.map((trace) => trace.x)),
      yaxis: titled(spec.layout.yaxis, data.map((trace) => trace.y)),
      annotations: (spec.layout.annotations || []).map((note) => ({ ...note, bgcolor: look.panel, font: { ...note.font, color: look.soft } })),
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: look.font, size: 12, color: look.text },
      margin: { l: 8, r: 8, t: 8, b: 8 }, hovermode: "closest", dragmode: narrow.matches ? false : "zoom",
      hoverlabel: { bgcolor: look.panel, bordercolor: look.grid, font: { color: look.text, family: look.font }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: look.soft, activecolor: look.text },
      uirevision: axis_of || "step",
    };
    return { data, layout };
  }

  // The buttons are named one by one: plotly's own choice has one that sends the data to a server.
  const CONFIG = {
    displaylogo: false, responsive: true, scrollZoom: false, plotlyServerURL: "",
    displayModeBar: narrow.matches ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };

  function draw(element) {
    loadPlotly();
    if (!drawn.has(element)) drawn.set(element, unpack(page.figures[element.dataset.figure]));
    const { data, layout } = styled(drawn.get(element));
    return Plotly.react(element, data, layout, CONFIG);
  }

  const redraw = () => drawn.forEach((_, element) => draw(element));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "300px" });
  all("[data-figure]").forEach((element) => watcher.observe(element));
  const whenIdle = window.requestIdleCallback || ((callback) => setTimeout(callback, 200));
  addEventListener("load", () => { if (all("[data-figure]").length) whenIdle(loadPlotly); });
  dark.addEventListener("change", redraw);
  addEventListener("beforeprint", () => all("[data-figure]").forEach(draw));

  all("[data-toggle]").forEach((box) => box.addEventListener("change", () => {
    const set = hidden[box.dataset.toggle];
    const value = box.dataset.toggle === "groups" ? Number(box.value) : box.value;
    if (box.checked) set.delete(value); else set.add(value);
    redraw();
  }));

  for (const choice of [most, against]) if (choice) choice.addEventListener("change", redraw);

  // ---- data of curves as a file -----------------------------------------------------------------------------

  /** A spreadsheet takes text that starts like a formula for one; an apostrophe keeps it text. */
  function csvCell(value) {
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function curveCsv(spec) {
    const rows = [["trial", "point", "step", "value"]];
    for (const trace of spec.data.filter((trace) => trace.trials)) {
      let at = 0;
      for (const [trial, count] of trace.trials) {
        for (let i = at; i < at + count - 1; i++) { // the last is the gap after the line of a trial
          rows.push([page.numbers[trial], page.points[trial], trace.x[i], Number(trace.y[i].toPrecision(7))]);
        }
        at += count;
      }
    }
    return rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
  }

  all("a[data-curve]").forEach((link) => link.addEventListener("click", () => {
    const element = document.querySelector(`[data-figure="${CSS.escape(link.dataset.curve)}"]`);
    if (!drawn.has(element)) draw(element);
    link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(curveCsv(drawn.get(element)));
  }));

  // ---- tables -----------------------------------------------------------------------------------------------

  const order = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

  /** Numbers before texts; what has no value stays at the end whichever way. */
  function compare(a, b, sign) {
    const [x, y] = [a.dataset.v, b.dataset.v];
    if (x !== undefined && y !== undefined) return sign * (Number(x) - Number(y));
    if (x !== undefined || y !== undefined) return x !== undefined ? -1 : 1;
    const [s, t] = [a.textContent.trim(), b.textContent.trim()];
    const [noS, noT] = [s === "" || s === "–", t === "" || t === "–"];
    return noS || noT ? noS - noT : sign * order.compare(s, t);
  }

  all("th[scope=col] button").forEach((button) => button.addEventListener("click", () => {
    const head = button.parentElement;
    const table = head.closest("table");
    const column = head.cellIndex;
    const up = head.getAttribute("aria-sort") !== "ascending";
    all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    rows.sort((a, b) => compare(a.cells[column], b.cells[column], up ? 1 : -1));
    body.append(...rows);
  }));

  all("input[data-filter]").forEach((input) => input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = Array.from(document.getElementById(input.dataset.filter).tBodies[0].rows);
    let count = 0;
    for (const row of rows) {
      const text = Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += row.hidden ? 0 : 1;
    }
    const told = document.getElementById(`${input.dataset.filter}-count`);
    told.textContent = words.length ? `${count} of ${rows.length} trials` : `${rows.length} trials`;
  }));

  // ---- commands ---------------------------------------------------------------------------------------------

  all("button[data-copy]").forEach((button) => button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch { // no clipboard for a page of this origin: select it instead
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }));
})();
