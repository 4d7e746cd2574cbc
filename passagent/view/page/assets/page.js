// What the page does by itself: charts, times in the viewer's zone, keys, the theme, polling with ETags.
"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector) => Array.from(document.querySelectorAll(selector));

  const WHEN = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

  // -- theme -------------------------------------------------------------------------------------------
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (stored()) root.dataset.theme = stored();

  function switchTheme() {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* a page that may store nothing */ }
    drawAll(true);
  }

  function colour(name) {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(--${name})`;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  // -- charts ------------------------------------------------------------------------------------------
  const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, notation: "compact" });
  const figure = (value) => (value == null ? "–" : SHORT.format(value));

  function logTicks(low, high) {
    const apart = Math.log(high / low) / 9;
    for (const steps of [[1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9]]) {
      const found = [];
      for (let decade = 10 ** Math.floor(Math.log10(low)); decade <= high; decade *= 10)
        for (const tick of steps.map((step) => decade * step))
          if (tick >= low && tick <= high && (!found.length || Math.log(tick / found.at(-1)) > apart)) found.push(tick);
      if (found.length >= 4) return found;
    }
    const size = (high - low) / 4, unit = 10 ** Math.floor(Math.log10(size)), ticks = [];
    const step = Math.ceil(size / unit) * unit;
    for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(Number(tick.toPrecision(12)));
    return ticks;
  }

  function clockText(ticks) {
    const span = ticks.at(-1) - ticks[0], two = "2-digit";
    const shown = span > 172800 ? { month: "short", day: "numeric" } : { hour: two, minute: two, hourCycle: "h23", ...(span < 300 && { second: two }) };
    return ticks.map((tick) => new Date(tick * 1000).toLocaleString("en", shown));
  }

  const faint = (rgb, share) => rgb.replace("rgb(", "rgba(").replace(")", `, ${share})`);

  function options(spec, box) {
    const ink = colour("muted"), grid = colour("line"), sheet = colour("sheet");
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "11px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 22 };
    const when = (value) => (value == null ? "–" : new Date(value * 1000).toLocaleString([], WHEN));
    const data = [spec.x], bands = [];
    const series = [{ label: spec.time ? "time" : spec.xlabel, value: (_, value) => (spec.time ? when(value) : figure(value)) }];
    spec.lines.forEach((line, number) => {
      const stroke = colour(line.hue === -1 ? "muted" : `s${(line.hue ?? number) % 8}`);
      const one = { label: line.label, stroke, width: 2, spanGaps: true, points: { show: false }, scale: line.scale || "y", value: (_, value) => figure(value) };
      if (line.kind === "step") one.paths = uPlot.paths.stepped({ align: 1 });
      if (line.kind === "points") Object.assign(one, { paths: () => null, points: { show: true, size: 5, fill: faint(stroke, 0.55), stroke: sheet, width: 0.5 } });
      if (line.kind === "bound" || line.kind === "eager") Object.assign(one, { width: 1, dash: [5, 4] });
      if (line.low) {
        const side = (values, name) => { data.push(values); return series.push({ label: name, class: "side", width: 0, points: { show: false }, value: (_, value) => figure(value) }) - 1; };
        bands.push({ series: [side(line.high, `${line.label} high`), side(line.low, `${line.label} low`)], fill: faint(stroke, 0.16) });
        one.points = { show: true, size: 5, fill: stroke };
      }
      data.push(line.values);
      series.push(one);
    });
    const bounds = spec.lines.flatMap((line, i) => (line.kind === "bound" ? [i + 1] : []));
    if (bounds.length === 2) bands.push({ series: bounds.reverse(), fill: faint(colour("s2"), 0.22) });
    const y = spec.log
      ? { distr: 100, fwd: Math.log2, inv: (v) => 2 ** v, range: (_, low, high) => (low == null ? [0.5, 2] : [low / 1.06, high * 1.06]) }
      : { range: (_, low, high) => (low == null ? [0, 1] : [Math.min(0, low), high * 1.05 || 1]) };
    const axes = [
      { ...axis, space: 64, label: spec.xlabel, values: (_, ticks) => (spec.time ? clockText(ticks) : ticks.map((tick) => (Number.isInteger(tick) ? figure(tick) : ""))) },
      { ...axis, scale: "y", label: spec.ylabel, size: 56, filter: (_, ticks) => ticks, values: (_, ticks) => ticks.map(figure), ...(spec.log && { splits: (_, __, low, high) => logTicks(low, high) }) },
    ];
    const scales = { x: { time: Boolean(spec.time), ...(spec.x.length < 2 && { range: [spec.x[0] - 1, spec.x[0] + 1] }) }, y };
    if (spec.lines.some((line) => line.scale === "money")) {
      scales.money = { range: (_, low, high) => [0, high * 1.05 || 1] };
      axes.push({ ...axis, scale: "money", side: 1, label: "USD", size: 56, grid: { show: false }, values: (_, ticks) => ticks.map((tick) => `$${figure(tick)}`) });
    }
    return [{ width: Math.max(box.clientWidth, 200), height: box.clientWidth < 500 ? 220 : 280, series, bands, scales, axes, cursor: { y: false }, legend: { markers: { width: 0, fill: (plot, i) => plot.series[i].stroke?.(plot, i) ?? "transparent" } } }, data];
  }

  const drawn = new WeakMap();

  function draw(box, anew) {
    const before = drawn.get(box);
    if (before && before.text === box.dataset.chart && !anew) return;
    if (before) before.plot.destroy();
    const spec = JSON.parse(box.dataset.chart), [opts, data] = options(spec, box);
    const plot = new uPlot(opts, data, box);
    drawn.set(box, { plot, text: box.dataset.chart });
    if (!before) new ResizeObserver(() => drawn.get(box).plot.setSize({ width: Math.max(box.clientWidth, 200), height: box.clientWidth < 500 ? 220 : 280 })).observe(box);
    if (spec.nodes && box.dataset.to) plot.over.addEventListener("click", () => {
      for (let away = 0, at = plot.cursor.idx; at != null && away < 40; away++)
        for (const near of [at - away, at + away]) if (spec.nodes[near]) return void (location.href = box.dataset.to + spec.nodes[near]);
    });
  }

  const drawAll = (anew) => all("[data-chart]").forEach((box) => draw(box, anew));

  // -- times -------------------------------------------------------------------------------------------
  function showTimes() {
    for (const one of all("time[datetime]")) {
      const at = new Date(one.dateTime);
      const text = one.dataset.since === undefined ? at.toLocaleString([], WHEN) : since(at);
      if (one.textContent !== text) one.textContent = text;
      if (!one.title) one.title = at.toLocaleString([], { dateStyle: "full", timeStyle: "long" });
    }
  }

  function since(at) {
    const seconds = Math.max(0, Math.floor((Date.now() - at) / 1000)), pad = (n) => String(n).padStart(2, "0");
    const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60;
    return hours ? `${hours}:${pad(minutes)}:${pad(seconds % 60)}` : `${minutes}:${pad(seconds % 60)}`;
  }

  // -- keys --------------------------------------------------------------------------------------------
  const dialog = document.getElementById("keys");

  function showKeys() {
    const list = dialog.querySelector("dl");
    list.replaceChildren(...all("[data-key]").flatMap((one) => {
      const key = document.createElement("dt"), what = document.createElement("dd");
      key.appendChild(document.createElement("kbd")).textContent = one.dataset.key;
      what.textContent = one.dataset.what || one.textContent.trim();
      return [key, what];
    }));
    dialog.showModal();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    const chosen = all("[data-key]").find((one) => one.dataset.key === event.key);
    if (chosen) { event.preventDefault(); chosen.click(); }
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-do]");
    if (button) ({ theme: switchTheme, keys: showKeys })[button.dataset.do]();
  });

  // -- polling -----------------------------------------------------------------------------------------
  const tags = new Map();
  document.addEventListener("htmx:config:request", (event) => {
    const { request } = event.detail.ctx, tag = tags.get(request.action);
    if (tag) request.headers["If-None-Match"] = tag;
    request.asked = request.action;
  });
  document.addEventListener("htmx:before:response", (event) => {
    const { request, response } = event.detail.ctx, tag = response.headers.get("ETag");
    delete root.dataset.state;
    if (response.status === 200 && tag) tags.set(request.asked, tag);
    if (response.status >= 400) event.preventDefault();
  });
  document.addEventListener("htmx:error", () => { root.dataset.state = "offline"; });
  document.addEventListener("htmx:after:swap", () => { drawAll(); showTimes(); });

  const begin = () => { drawAll(); showTimes(); };
  addEventListener("beforeprint", () => drawAll(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
  setInterval(showTimes, 1000);
  begin();
})();
