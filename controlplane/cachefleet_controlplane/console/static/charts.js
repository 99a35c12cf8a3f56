// Draws the last hour with uPlot; the data are JSON of the console, colours are the style sheet's.
"use strict";
(() => {
  const REFRESH_MS = 15000, HEIGHT = 170;
  const HOUR = 3600, plots = new Map();
  let kept = { pool: null, points: [] };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  const KINDS = {
    ratio: { unit: (v) => (v == null ? "–" : (100 * v).toFixed(1) + " %"), range: [0, 1], series: [["hit ratio", "idle", (p) => p.hitRatio]] },
    tokens: { unit: (v) => (v == null ? "–" : Math.round(v).toLocaleString("en")), series: [
      ["from cache", "idle", (p, step) => p.servedTokens == null ? null : p.servedTokens / step],
      ["computed", "lost", (p, step) => p.promptTokens == null ? null : (p.promptTokens - p.servedTokens) / step]] },
    queue: { unit: (v) => (v == null ? "–" : String(v)), series: [
      ["running", "running", (p) => p.running], ["at engines", "wait", (p) => p.waiting], ["at the gateway", "evict", (p) => p.queued]] },
    latency: { unit: (v) => (v == null ? "–" : v < 1 ? Math.round(1000 * v) + " ms" : v.toFixed(1) + " s"), least: 0.05, series: [["first token", "prefill", (p) => p.ttftSeconds]] },
    errors: { unit: (v) => (v == null ? "–" : String(+v.toFixed(1))), series: [
      ["answered", "idle", (p, step) => 60 * p.requests / step], ["failed", "bad", (p, step) => 60 * p.failed / step]] },
  };

  function options(kind, series, width) {
    const axis = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    return {
      width, height: HEIGHT, legend: { live: true }, cursor: { drag: { x: false, y: false } },
      hooks: { setLegend: [latest], setData: [latest] },
      scales: { y: { range: kind.range || ((_, low, high) => [0, Math.max(high, kind.least || 1) * 1.05]) } },
      axes: [{ ...axis, space: 70, values: (_, ticks) => ticks.map((at) => new Date(1000 * at).toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit" })), incrs: [60, 120, 300, 600, 900, 1800, 3600] }, { ...axis, size: 64, values: (_, ticks) => ticks.map(kind.unit) }],
      series: [{ value: (_, at) => (at == null ? "–" : new Date(1000 * at).toLocaleTimeString([], { hour12: false })) },
        ...series.map(([label, name]) => ({ label, stroke: colour(name), width: 2, fill: kind.stacked ? colour(name) : undefined, value: (_, v) => kind.unit(v), points: { show: false } }))],
    };
  }

  // Where nobody points at a time, the legend has the last one that was told.
  function latest(plot) {
    if (plot.legend.idx != null && plot.cursor.idx != null) return;
    const at = plot.data.slice(1).reduce((last, values) => Math.max(last, values.findLastIndex((v) => v != null)), -1);
    if (at >= 0 && plot.legend.idx !== at) plot.setLegend({ idx: at }, false);
  }

  // What a chart shows is in words for those who do not see it.
  function describe(figure, kind, series, data) {
    const words = series.map(([label], i) => label + " " + kind.unit([...data[i + 1]].reverse().find((v) => v != null)));
    const plot = figure.querySelector(".plot");
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", figure.querySelector("figcaption").textContent + ". Last: " + words.join(", "));
  }

  function draw(figure, kind, series, data) {
    const box = figure.querySelector(".plot"), known = plots.get(figure);
    if (known && known.shown === series.length) known.plot.setData(data);
    else {
      box.replaceChildren();
      plots.set(figure, { shown: series.length, plot: new uPlot(options(kind, series, box.clientWidth || 300), data, box) });
    }
    describe(figure, kind, series, data);
  }

  const seconds = (at) => (typeof at === "number" ? at : Date.parse(at) / 1000);

  // What is there already is not asked for again; the last point may have grown.
  async function more(select) {
    const pool = select.value, known = kept.pool === pool ? kept.points : [], last = known.at(-1);
    const query = new URLSearchParams({ pool, ...(last && { since: last.at }) });
    let answer;
    try { answer = await fetch(select.dataset.history + "?" + query); } catch { return null; }
    if (!answer.ok || answer.redirected) return null;
    const found = await answer.json(), fresh = found.points || [];
    const first = fresh.length ? seconds(fresh[0].at) : Infinity;
    const points = [...known.filter((p) => seconds(p.at) < first), ...fresh];
    kept = { pool, points: points.filter((p) => seconds(p.at) > Date.now() / 1000 - HOUR) };
    return found;
  }

  // Since when points are known: a control plane that was started lately remembers no whole hour.
  function facts(points, alerts) {
    const since = document.getElementById("history-since"), words = document.getElementById("hour-facts");
    const first = points.length ? seconds(points[0].at) : 0;
    since.textContent = first ? "since " + new Date(1000 * first).toLocaleTimeString([], { hour12: false }) +
      (first > Date.now() / 1000 - HOUR + 120 ? ": nothing is known of before" : "") : "";
    const sum = (name) => points.reduce((all, p) => all + (p[name] || 0), 0), failed = sum("failed");
    words.textContent = points.length ? sum("requests").toLocaleString("en") + " requests answered, " + failed.toLocaleString("en") + " failed in this time" : "";
    words.className = failed ? "bad" : "";
    const link = document.getElementById("alerts");
    if (alerts) { link.textContent = alerts.words; link.className = alerts.severity; }
  }

  async function hour() {
    const select = document.getElementById("history-pool");
    if (!select || document.hidden) return;
    const told = document.getElementById("history-told");
    const found = await more(select);
    if (!found) return;
    const points = kept.points;
    // The step that goes on has had a part of its time only.
    const goesOn = points.length > 1 && seconds(points.at(-1).at) + found.stepSeconds > Date.now() / 1000, whole = goesOn ? points.slice(0, -1) : points;
    facts(points, found.alerts);
    told.textContent = found.unknown || (points.length ? "" : "Nothing has been seen yet: a point is added every few seconds.");
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const kind = KINDS[figure.dataset.chart];
      figure.hidden = !points.length;
      if (points.length) draw(figure, kind, kind.series, [whole.map((p) => seconds(p.at)), ...kind.series.map(([, , of]) => whole.map((p) => of(p, found.stepSeconds)))]);
    }
  }

  // A stack: each series is drawn from 0 to the sum up to it, the highest first.
  function causes() {
    const figure = document.querySelector("figure[data-causes]");
    if (!figure) return;
    const found = JSON.parse(document.getElementById(figure.dataset.causes).textContent);
    const names = found.causes, at = found.buckets.map((b) => seconds(b.at));
    const sums = names.map((_, i) => found.buckets.map((b) => names.slice(0, i + 1).reduce((sum, name) => sum + (b.causes[name] || 0), 0)));
    const series = names.map((name, i) => [found.labels[i], "cause-" + (i % 8), null]).reverse();
    const kind = { unit: (v) => (v == null ? "–" : Math.round(v).toLocaleString("en")), stacked: true };
    if (at.length) draw(figure, kind, series, [at, ...sums.reverse()]);
  }

  function resize() {
    for (const [figure, { plot }] of plots) if (figure.isConnected) plot.setSize({ width: figure.querySelector(".plot").clientWidth, height: HEIGHT });
  }

  function all() { hour(); causes(); }
  document.addEventListener("DOMContentLoaded", all);
  document.addEventListener("console:fresh", hour);
  document.addEventListener("htmx:afterSettle", causes);
  document.addEventListener("change", (event) => { if (event.target.id === "history-pool") hour(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { plots.clear(); all(); });
  addEventListener("resize", resize);
  setInterval(hour, REFRESH_MS);
})();
