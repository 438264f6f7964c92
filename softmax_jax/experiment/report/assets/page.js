(() => {
  "use strict";
  const root = document.documentElement;
  const drawn = new Map(); // by chart: what vegaEmbed returned
  window.charts = drawn;

  // Light and dark: the system's choice until the button is pressed.
  const dark = () => getComputedStyle(root).colorScheme === "dark";
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const button = document.getElementById("theme");

  function showTheme() {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${dark() ? "light" : "dark"} theme`);
    button.setAttribute("aria-pressed", String(dark()));
  }

  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    showTheme();
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    showTheme();
    draw();
  });

  function config(narrow) {
    const text = { labelColor: colour("--ink"), titleColor: colour("--ink") };
    return {
      background: null,
      font: getComputedStyle(document.body).fontFamily,
      axis: { ...text, gridColor: colour("--grid"), domainColor: colour("--line"), tickColor: colour("--line"), labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500 },
      legend: { ...text, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500, labelLimit: 260, orient: narrow ? "bottom" : "right", ...(narrow ? { columns: 1, direction: "vertical" } : {}) },
      header: { ...text, labelFontSize: 12, titleFontSize: 12 },
      title: { color: colour("--ink"), subtitleColor: colour("--soft") },
      text: { color: colour("--ink"), fontSize: 12 },
      rule: { color: colour("--ink") },
      view: { stroke: colour("--line") },
    };
  }

  const FOR_WIDE = "for wide charts alone";
  const STROKES = { symbolOpacity: 1, symbolType: "stroke", symbolStrokeWidth: 3 };
  const LABELS = 240; // pixels that names at the ends of lines take

  // A narrow chart has no room for names at the ends of its lines: a legend stands below it instead.
  function withLegend(spec) {
    if (spec.vconcat || spec.hconcat) {
      const key = spec.vconcat ? "vconcat" : "hconcat";
      return { ...spec, [key]: spec[key].map(withLegend) };
    }
    if (!spec.layer?.some((layer) => layer.description === FOR_WIDE)) return spec;
    const named = (layer) => {
      const encoding = { ...layer.encoding };
      for (const channel of ["color", "strokeDash"]) {
        if (encoding[channel]?.legend === null) encoding[channel] = { ...encoding[channel], title: null, legend: STROKES };
      }
      for (const [channel, { legend, ...rest }] of Object.entries(encoding)) {
        if (legend) encoding[channel] = { ...rest, legend: { ...legend, columns: 1 } };
      }
      return { ...layer, encoding };
    };
    return { ...spec, layer: spec.layer.filter((layer) => layer.description !== FOR_WIDE).map(named) };
  }

  // The title of a panel in as many lines as it takes.
  function titled(spec, width) {
    if (!spec.title?.text) return spec;
    const lines = [""];
    for (const word of String(spec.title.text).split(" ")) {
      if ((lines.at(-1) + word).length * 8 > width) lines.push("");
      lines[lines.length - 1] = `${lines.at(-1)} ${word}`.trim();
    }
    return { ...spec, title: { ...spec.title, text: lines } };
  }

  // A single panel takes the width there is. Of several in a row each goes under the other where that is too little.
  // What is still too wide, as a grid of small panels, scrolls within its box.
  function fitted(spec, width) {
    const panels = spec.hconcat ?? spec.vconcat;
    if (panels) {
      const stacked = spec.vconcat !== undefined || width < 700;
      const beside = panels.some((panel) => panel.layer?.some((layer) => layer.description === FOR_WIDE)) ? LABELS : 0;
      const most = stacked ? Math.max(220, width - 110 - beside) : (width - 150) / panels.length - 62;
      const fit = (panel) => titled({ ...panel, width: Math.min(panel.width, most) }, most);
      const { hconcat, vconcat, ...rest } = spec;
      return { ...rest, [stacked ? "vconcat" : "hconcat"]: panels.map(fit) };
    }
    if (spec.columns && spec.spec) return { ...spec, columns: Math.max(1, Math.min(spec.columns, Math.floor(width / 270))) };
    if (typeof spec.width !== "number" || !(spec.layer || spec.mark)) return spec;
    return { ...spec, width: "container", autosize: { type: "fit-x", contains: "padding" } };
  }

  // Where the reader left the controls of a chart.
  function kept(spec, name) {
    if (!drawn.has(name)) return spec;
    const { view } = drawn.get(name);
    const params = (spec.params ?? []).map((p) => (p.bind && "value" in p ? { ...p, value: view.signal(p.name) } : p));
    return { ...spec, params };
  }

  async function drawChart(element) {
    const name = element.dataset.chart;
    const narrow = element.clientWidth < 620;
    const written = JSON.parse(document.getElementById(`spec-${name}`).textContent);
    const spec = kept(fitted(narrow ? withLegend(written) : written, element.clientWidth), name);
    const controls = document.getElementById(`controls-${name}`);
    drawn.get(name)?.finalize();
    controls.replaceChildren();
    const result = await vegaEmbed(element, spec, {
      mode: "vega-lite",
      renderer: element.dataset.renderer,
      actions: false,
      config: config(narrow),
      tooltip: { theme: dark() ? "dark" : "light" },
      bind: controls,
    });
    drawn.set(name, result);
  }

  let turn = 0;
  async function draw() {
    const own = ++turn;
    root.dataset.ready = "false";
    for (const element of document.querySelectorAll("[data-chart]")) {
      if (own !== turn) return;
      await drawChart(element);
    }
    root.dataset.ready = "true";
  }

  // Tables: a button in every heading sorts, largest first for numbers; what is missing stays at the end.
  function sort(heading) {
    const table = heading.closest("table");
    const column = heading.cellIndex;
    const text = column === 0;
    const before = heading.getAttribute("aria-sort");
    const ascending = before === "none" ? text : before === "descending";
    for (const other of heading.parentElement.cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const key = (row) => (text ? row.cells[column].textContent : parseFloat(row.cells[column].textContent));
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [left, right] = [key(a), key(b)];
      if (!text && isNaN(left) !== isNaN(right)) return isNaN(left) - isNaN(right);
      const order = text ? left.localeCompare(right) : left - right;
      return ascending ? order : -order;
    });
    table.tBodies[0].append(...rows);
  }

  for (const heading of document.querySelectorAll("table.sortable thead th")) {
    heading.querySelector("button").addEventListener("click", () => sort(heading));
  }

  showTheme();
  draw();
})();
