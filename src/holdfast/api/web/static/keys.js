// What the page does beyond htmx: keys, what stays open when rows are given anew, and the slider over two images.
// Everything works without it, by links.
"use strict";
(() => {
  const items = () => [...document.querySelectorAll(".row, tr.item, .attempt, main > .page .file")];
  const chosen = () => document.querySelector(".chosen");
  const base = document.querySelector("a.brand").getAttribute("href");
  let compareBase = null;

  function choose(item) {
    const before = chosen();
    if (before) before.classList.remove("chosen");
    if (!item) return;
    item.classList.add("chosen");
    item.scrollIntoView({ block: "nearest" });
    const link = item.querySelector("summary, a");
    if (link) link.focus({ preventScroll: true });
    clearTimeout(waiting);
    waiting = setTimeout(() => show(item.querySelector("a.changes")), 120);
  }

  // Where there is room, what a row changed is shown beside the rows.
  const preview = document.getElementById("preview");
  const hasRoom = matchMedia("(min-width: 1900px)");
  let previewed = null;
  let waiting = 0;
  function show(link) {
    if (!preview || !hasRoom.matches || !link) return false;
    if (previewed !== link.href) {
      previewed = link.href;
      htmx.ajax("GET", `${link.href}&view=unified`, { target: preview, swap: "innerHTML" });
      preview.scrollTop = 0;
    }
    return true;
  }
  show(document.querySelector(".row.here a.changes"));
  document.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const link = event.target.closest(".row a.changes");
    if (!link) return;
    choose(link.closest(".row"));
    if (show(link)) event.preventDefault();
  });

  function move(by) {
    const all = items();
    const at = all.indexOf(chosen());
    choose(all[at < 0 ? 0 : Math.min(Math.max(at + by, 0), all.length - 1)]);
  }

  function follow(selector) {
    const item = chosen();
    const link = item && item.querySelector(selector);
    if (link) link.click();
    return Boolean(link);
  }

  function fold() {
    const item = chosen();
    const details = item && (item.matches("details") ? item : item.querySelector("details"));
    if (details) details.open = !details.open;
  }

  function compare() {
    const item = chosen();
    if (!compareBase || !item || !item.dataset.state) return;
    location.href = `${base}diff?from=${encodeURIComponent(compareBase)}&to=${encodeURIComponent(item.dataset.state)}`;
  }

  function markBase() {
    const item = chosen();
    if (!item || !item.dataset.state) return;
    const before = document.querySelector(".base");
    if (before) before.classList.remove("base");
    item.classList.add("base");
    compareBase = item.dataset.state;
  }

  const actions = {
    j: () => move(1),
    k: () => move(-1),
    g: () => choose(items()[0]),
    G: () => choose(items().at(-1)),
    o: fold,
    b: markBase,
    c: compare,
    f: () => follow("a.state"),
    r: () => {
      const item = chosen();
      if (item && item.dataset.state) location.href = `${base}act/restore?to=${encodeURIComponent(item.dataset.state)}`;
    },
    z: () => { location.href = `${base}act/undo`; },
    Z: () => { location.href = `${base}act/redo`; },
    w: () => {
      const answer = document.querySelector("#held button");
      if (answer) answer.focus();
    },
    u: () => { location.href = base; },
    "?": () => document.getElementById("keys").showModal(),
    "/": () => {
      const field = document.querySelector("[data-filter]");
      if (field) field.focus();
      else location.href = base;
    },
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isField = event.target.closest("input, select, textarea");
    if (isField) {
      if (event.key === "Escape") isField.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && !event.target.closest("a, button, summary") && chosen()) {
      follow("a.changes") || follow("a");
      return;
    }
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });

  const button = document.querySelector("[data-keys-open]");
  button.hidden = false;
  button.addEventListener("click", actions["?"]);

  // Rows that are given anew: what was open is opened again, what was chosen stays so, and what is new is shown.
  let open = new Set();
  let known = null;
  let chosenName = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id !== "newest") return;
    const rows = [...event.detail.target.querySelectorAll(".row")];
    known = new Set(rows.map((row) => row.dataset.name));
    open = new Set(rows.filter((row) => row.querySelector("details[open]")).map((row) => row.dataset.name));
    chosenName = chosen() && chosen().dataset.name;
  });
  document.addEventListener("htmx:afterSettle", () => {
    if (!known) return;
    const all = new Map();
    for (const row of document.querySelectorAll(".row")) {
      // A run that has ended stands at its end now, and no longer where it began.
      if (all.has(row.dataset.name)) row.remove();
      else all.set(row.dataset.name, row);
    }
    for (const row of document.querySelectorAll("#newest .row")) {
      if (!known.has(row.dataset.name)) row.classList.add("fresh");
      if (open.has(row.dataset.name)) for (const one of row.querySelectorAll("details")) one.open = true;
    }
    if (chosenName && all.has(chosenName)) all.get(chosenName).classList.add("chosen");
    known = null;
  });

  // What waits for an answer is in the title, for whom the page is in another tab.
  document.addEventListener("htmx:afterSettle", () => {
    const waits = Number(document.getElementById("held").dataset.count);
    document.title = (waits ? `(${waits} waiting) ` : "") + document.title.replace(/^\(\d+ waiting\) /, "");
  });

  // What could not be loaded is said where it would stand; and that the server has ended, at the top.
  document.addEventListener("htmx:responseError", (event) => {
    const heading = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html").querySelector("h1");
    const said = document.createElement("p");
    said.className = "unloaded";
    said.textContent = heading ? heading.textContent : `This could not be loaded (${event.detail.xhr.status}).`;
    event.detail.target.replaceChildren(said);
  });
  const ended = document.getElementById("ended");
  document.addEventListener("htmx:sseError", () => { ended.hidden = false; });
  document.addEventListener("htmx:sseOpen", () => { ended.hidden = true; });

  // The stream of events, as all tabs share it: what the page shows already is no news.
  class SharedStream extends EventTarget {
    constructor(url) {
      super();
      const wanted = new URL(url, location.href);
      const shown = wanted.searchParams;
      this.known = { changed: shown.get("since"), held: shown.get("held"), experiments: shown.get("experiments") };
      this.readyState = EventSource.CONNECTING;
      // (What there is now is told first: it differs from this.)
      const all = { since: "-", held: "-", ...(this.known.experiments ? { experiments: "-" } : {}) };
      wanted.search = new URLSearchParams(all);
      this.port = new SharedWorker(document.querySelector("script[data-live]").dataset.live).port;
      this.port.onmessage = ({ data }) => this.take(data);
      this.port.postMessage(wanted.href);
      addEventListener("pagehide", () => this.close());
    }

    take({ name, data, state }) {
      if (name === "open") {
        this.readyState = EventSource.OPEN;
        this.onopen();
      } else if (name === "error") {
        this.readyState = state;
        this.onerror();
      } else {
        const value = data === "nothing" ? "" : data;
        if (value === (this.known[name] || "")) return;
        this.known[name] = value;
        this.dispatchEvent(new MessageEvent(name, { data }));
      }
    }

    close() {
      this.readyState = EventSource.CLOSED;
      this.port.postMessage("");
      this.port.close();
    }
  }
  if (window.SharedWorker) htmx.createEventSource = (url) => new SharedStream(url);
  // (A page that is shown again as it was left has no stream.)
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

  function addSlider(images) {
    const [before, after] = images.querySelectorAll("img");
    if (!before || !after || images.dataset.slider) return;
    images.dataset.slider = "ready";
    const stack = document.createElement("div");
    stack.className = "over-stack";
    const slider = document.createElement("label");
    slider.className = "over-slider";
    const range = document.createElement("input");
    range.type = "range";
    range.value = 50;
    range.setAttribute("aria-label", "How much of the image before is shown");
    slider.append("after", range, "before");
    const show = () => { before.style.clipPath = `inset(0 ${100 - range.value}% 0 0)`; };
    const toggle = document.createElement("button");
    toggle.type = "button";
    const figures = [...images.querySelectorAll("figure")];
    const lay = (over) => {
      images.classList.toggle("over", over);
      toggle.textContent = over ? "Side by side" : "On top of each other";
      if (over) {
        stack.append(after, before);
        images.prepend(stack, slider);
        figures.forEach((figure) => { figure.hidden = true; });
        show();
      } else {
        before.style.clipPath = "";
        figures[0].prepend(before);
        figures[1].prepend(after);
        stack.remove();
        slider.remove();
        figures.forEach((figure) => { figure.hidden = false; });
      }
    };
    toggle.addEventListener("click", () => lay(!images.classList.contains("over")));
    range.addEventListener("input", show);
    images.append(toggle);
    lay(false);
  }
  const addSliders = (root) => root.querySelectorAll("[data-slider]").forEach(addSlider);
  addSliders(document);
  document.addEventListener("htmx:afterSettle", (event) => addSliders(event.detail.elt.parentElement || document));
})();
