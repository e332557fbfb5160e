/** The trajectory as a band: one part a step, as wide as it has tokens, and below it who read it from the cache. */

import { adapterOf, chip, colour } from "./colours.js";
import { $, count, element, many, say } from "./dom.js";
import { textOf } from "./run.js";

const TEXT_AT_MOST = 4000;

/** onGoTo gets the span whose text is to be shown in the transcript. */
export function band(onGoTo) {
  const parts = $("band");
  const scroller = $("scroller");
  const growing = $("growing");
  const detail = $("part");
  const table = $("band-table");
  let run = null;
  let shown = []; // {span, node, marks, key}
  let chosen = null; // spans
  let hovered = null;

  $("scale").addEventListener("input", (event) => scroller.style.setProperty("--scale", 2 ** event.target.value));
  table.addEventListener("toggle", () => run && tabulate());

  const placeOf = (event) => shown.findIndex((one) => one.node === event.target.closest("[role=option]"));

  parts.addEventListener("click", (event) => choose(placeOf(event)));
  parts.addEventListener("focusin", (event) => choose(placeOf(event)));
  parts.addEventListener("pointerover", (event) => {
    if (event.pointerType === "mouse") hover(shown[placeOf(event)]?.span ?? null);
  });
  parts.addEventListener("pointerleave", () => hover(null));
  parts.addEventListener("keydown", (event) => {
    const at = shown.findIndex((one) => one.span === chosen);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    shown[Math.min(Math.max(to, 0), shown.length - 1)]?.node.focus();
  });

  function choose(place) {
    const one = shown[place];
    if (one === undefined || one.span === chosen) return;
    chosen = one.span;
    mark();
    one.node.scrollIntoView({ block: "nearest", inline: "nearest" });
    describe();
  }

  function hover(span) {
    if (span === hovered) return;
    hovered = span;
    describe();
  }

  /** One part can be reached with Tab: the chosen one, or else the first. The arrow keys go on from there. */
  function mark() {
    if (!shown.some((one) => one.span === chosen)) chosen = null;
    shown.forEach(({ span, node }, place) => {
      node.setAttribute("aria-selected", String(span === chosen));
      node.tabIndex = (chosen === null ? place === 0 : span === chosen) ? 0 : -1;
    });
  }

  function draw() {
    shown = shown.filter((one, place) => {
      if (one.span === run.spans[place]) return true;
      one.node.remove();
      return false;
    });
    for (const span of run.spans.slice(shown.length)) {
      const marks = run.agents.map((agent) => {
        const made = element("span", { class: "mark", "data-agent": agent });
        made.style.setProperty("--colour", colour(run, agent));
        return made;
      });
      const node = element("div", { role: "option", class: "span" }, element("span", { class: "block" }), ...marks);
      node.dataset.writer = span.opening ? "opening" : (span.agent ?? "tool");
      node.dataset.node = span.node;
      node.dataset.start = span.start;
      node.dataset.tokens = span.end - span.start;
      node.classList.toggle("by-tool", span.agent === null && !span.opening);
      node.style.setProperty("--colour", colour(run, span.agent, span.opening));
      node.style.flexGrow = span.end - span.start;
      parts.append(node);
      shown.push({ span, node, marks, key: null });
    }
    shown.forEach((one, place) => {
      const { span, node, marks } = one;
      const readers = run.readersOf(span);
      const name = nameOf(run, span, place, readers);
      if (name === one.key) return;
      one.key = name;
      node.setAttribute("aria-label", name);
      node.dataset.readers = [...readers.keys()].join(" ");
      marks.forEach((mark, lane) => {
        const tokens = readers.get(run.agents[lane])?.tokens ?? 0;
        mark.style.setProperty("--part", tokens / (span.end - span.start));
      });
    });
    mark();
  }

  function describe() {
    const span = hovered ?? chosen;
    detail.hidden = span === null;
    if (span === null) return detail.replaceChildren();
    const readers = run.readersOf(span);
    const tokens = span.end - span.start;
    const read = [...readers].map(([agent, reader]) => {
      const how = reader.tokens < tokens ? `, up to ${count(reader.tokens)} of its tokens` : "";
      return element("li", {}, chip(colour(run, agent)), `${agent}: in ${many(reader.turns, "turn")}${how}`);
    });
    const adapter = span.agent === null ? "" : adapterOf(run, span.agent);
    const rows = [
      ["Written by", chip(colour(run, span.agent, span.opening)), writerOf(span), adapter && ` (${adapter})`],
      ["Node", span.node],
      ["Tokens", count(tokens) + (span.shortened ? " that are left of it" : "")],
      ["Positions", positions(span)],
      ["Read from the cache by", read.length ? element("ul", { class: "plain" }, ...read) : "nobody yet"],
    ];
    const text = textOf(span.items);
    const go = element("button", { type: "button", class: "subtle" }, "Show in the transcript");
    go.addEventListener("click", () => onGoTo(span));
    detail.replaceChildren(
      element("dl", {}, ...rows.map(([term, ...what]) => element("div", {}, element("dt", {}, term), element("dd", {}, ...what)))),
      text ? element("p", { class: "excerpt", dir: "auto", tabindex: "0", role: "region", "aria-label": "Text of the part" }, short(text)) : element("p", { class: "quiet small" }, "Its text is not at hand."),
      go,
    );
  }

  /** The same for those who do not see the band. Only made while it is open. */
  function tabulate() {
    if (!table.open) return;
    const head = ["part", "written by", "node", "positions", "tokens", "read from the cache by"];
    const rows = run.spans.map((span, place) => {
      const readers = [...run.readersOf(span)].map(([agent, { turns }]) => `${agent} (${many(turns, "turn")})`);
      const cells = [place + 1, writerOf(span), span.node, positions(span), count(span.end - span.start)];
      return element("tr", {}, ...[...cells, readers.join(", ") || "nobody yet"].map((cell) => element("td", {}, String(cell))));
    });
    table.lastElementChild.replaceChildren(
      element(
        "table",
        { class: "parts-table" },
        element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
        element("tbody", {}, ...rows),
      ),
    );
  }

  function lanes() {
    const rows = run.agents.map((agent) => element("span", { class: "lane", title: agent }, chip(colour(run, agent)), element("span", {}, agent)));
    $("lanes").replaceChildren(element("span", { class: "writers" }, "written"), ...rows);
  }

  return {
    reset() {
      run = null;
      shown = [];
      chosen = hovered = null;
      for (const node of [parts, detail, $("lanes"), table.lastElementChild]) node.replaceChildren();
      detail.hidden = true;
      growing.hidden = true;
    },

    /** `counted`: whether there may be new spans or turns, and not only more text. */
    update(now, counted) {
      const atEnd = scroller.scrollLeft + scroller.clientWidth >= scroller.scrollWidth - 8;
      run = now;
      if (counted) {
        if ($("lanes").childElementCount === 0 && run.agents.length) lanes();
        draw();
        describe();
        tabulate();
        parts.style.flexGrow = run.length;
        scroller.style.setProperty("--spans", run.spans.length);
        say($("length"), many(run.length, "token"));
      }
      growing.hidden = run.uncounted === 0;
      growing.style.flexGrow = run.uncounted;
      growing.style.setProperty("--colour", colour(run, run.speaking[0] ?? null));
      if (atEnd && run.status === "running") scroller.scrollLeft = scroller.scrollWidth;
    },
  };
}

const writerOf = (span) => (span.opening ? "opening" : (span.agent ?? "tool or graph"));

const positions = ({ start, end }) => (end - start > 1 ? `${count(start)}–${count(end - 1)}` : count(start));

function nameOf(run, span, place, readers) {
  const read = [...readers].map(([agent, { turns }]) => `${agent} in ${many(turns, "turn")}`);
  return [
    `Part ${place + 1} of ${run.spans.length}: ${writerOf(span)}`,
    `node ${span.node}`,
    many(span.end - span.start, "token"),
    `positions ${span.start} to ${span.end - 1}`,
    read.length ? `read from the cache by ${read.join(", ")}` : "read by nobody yet",
  ].join(", ");
}

function short(text) {
  const trimmed = text.trim();
  return trimmed.length > TEXT_AT_MOST ? `${trimmed.slice(0, TEXT_AT_MOST)}…` : trimmed;
}
