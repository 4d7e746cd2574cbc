// What the page does by itself: times in the viewer's zone, keys, the theme, polling with ETags.
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
  }

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
  document.addEventListener("htmx:after:swap", showTimes);

  setInterval(showTimes, 1000);
  showTimes();
})();
