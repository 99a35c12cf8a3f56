// Follows the fleet: replaces the rows that have changed, and says where the control plane does not answer any more.
// On every page: asks before a form does what cannot be undone.
"use strict";
(() => {
  const RETRY_MS = 3000, SILENT_MS = 12000;
  let source = null, watchdog = 0, last = null, stopped = false;

  const badge = () => document.getElementById("live");
  const clock = (at) => at.toLocaleTimeString([], { hour12: false });

  function show(on) {
    const live = badge(), lost = document.getElementById("lost");
    if (!live) return;
    live.classList.toggle("on", on);
    live.classList.toggle("off", !on);
    const state = document.getElementById("live-state"), word = on ? "live" : "not live";
    if (state.textContent !== word) state.textContent = word;
    document.getElementById("live-at").textContent = last ? clock(last) : "";
    if (lost.hidden !== on) {
      lost.hidden = on;
      lost.textContent = on ? "" : "The control plane cannot be reached" + (last ? " since " + clock(last) + "; what is shown below is of then" : "") +
        ". It may be restarting, or the way to it is gone (a port-forward that ended?). This page tries again every few seconds.";
    }
  }

  function replaced(rows) {
    const focused = document.activeElement && document.activeElement.id;
    for (const [id, html] of Object.entries(rows)) {
      const element = document.getElementById(id);
      if (element) element.outerHTML = html;
    }
    if (focused && !document.activeElement.id) document.getElementById(focused)?.focus();
  }

  // Pools or workers have come or gone: the page's own markup has a place for each.
  async function reload() {
    const answer = await fetch(location.pathname, { headers: { "hx-request": "true" } });
    if (answer.status === 401) return signIn(answer);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = new Map([...document.querySelectorAll("#fleet details")].map((one) => [one.id, one.open]));
    const fresh = page.getElementById("fleet"), live = page.getElementById("live");
    if (!fresh || !live) return;
    for (const one of fresh.querySelectorAll("details")) if (open.has(one.id)) one.open = open.get(one.id);
    const charts = document.querySelector("#fleet .charts"), empty = fresh.querySelector(".charts");
    if (charts && empty) empty.replaceWith(charts);
    document.getElementById("fleet").replaceWith(fresh);
    badge().dataset.shape = live.dataset.shape;
    document.dispatchEvent(new Event("console:fresh"));
  }

  function signIn(answer) {
    stopped = true;
    location.href = (answer && answer.headers.get("hx-redirect")) || "/console/sign-in";
  }

  function heard(event) {
    const told = JSON.parse(event.data), live = badge();
    last = new Date();
    live.dataset.version = told.version;
    if (told.shape !== live.dataset.shape) reload().catch(() => {});
    else replaced(told.rows);
    show(true);
    clearTimeout(watchdog);
    watchdog = setTimeout(() => { show(false); again(); }, SILENT_MS);
  }

  async function again() {
    close();
    if (stopped || document.hidden) return;
    show(false);
    try {
      const answer = await fetch(location.pathname, { headers: { "hx-request": "true" }, method: "GET" });
      if (answer.status === 401) return signIn(answer);
    } catch { /* not reachable: the next try may be */ }
    clearTimeout(watchdog);
    watchdog = setTimeout(open, RETRY_MS);
  }

  function open() {
    close();
    const live = badge();
    if (!live || stopped) return;
    source = new EventSource(live.dataset.live + "?since=" + live.dataset.version);
    source.addEventListener("rows", heard);
    source.addEventListener("refused", (event) => { stopped = true; close(); location.href = "/console/sign-in?told=" + encodeURIComponent(event.data); });
    source.addEventListener("error", again);
    source.addEventListener("ended", again);
  }

  function close() {
    clearTimeout(watchdog);
    if (source) source.close();
    source = null;
  }

  // Nobody looks at a hidden page, so nothing is made for it.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  document.addEventListener("change", (event) => {
    if (event.target.id === "only-others") document.getElementById("fleet").classList.toggle("only-others", event.target.checked);
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href$='-workers']");
    const details = link && document.getElementById(link.hash.slice(1));
    if (details) details.open = true;
  });
  document.addEventListener("submit", (event) => {
    const asked = event.target.dataset.confirm;
    if (asked && !confirm(asked)) event.preventDefault();
  });
  open();
})();
