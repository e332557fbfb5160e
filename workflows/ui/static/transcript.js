/** What was said: a part of the list for each turn, each tool and what the graph wrote. */

import { adapterOf, chip, colour } from "./colours.js";
import { $, element, many, say, seconds, share } from "./dom.js";

const GONE = {
  lost: "Not kept: the step did not end, and is said anew if the run goes on.",
  cut: "No longer in the trajectory.",
};

export function transcript() {
  const list = $("transcript");
  let shown = new Map(); // item → what shows it

  return {
    reset() {
      shown = new Map();
      list.replaceChildren();
    },

    update(run) {
      for (const item of run.changed) {
        let view = shown.get(item);
        if (view === undefined) {
          view = VIEWS[item.kind](run, item);
          view.node.dataset.kind = item.kind;
          shown.set(item, view);
          list.append(view.node);
        }
        if (item.node) view.node.dataset.node = item.node;
        view.node.dataset.state = item.state;
        view.update();
        if (item.state in GONE) gone(view.node, item.state);
      }
      run.changed.clear();
    },

    /** Bring what was said in a span into view, and the focus to it. */
    goTo(span) {
      const node = shown.get(span.items[0])?.node;
      if (node === undefined) return;
      node.tabIndex = -1;
      node.focus({ preventScroll: true });
      node.scrollIntoView({ block: "center" });
    },
  };
}

const VIEWS = { turn, tool: folded, opening: folded, note };

function turn(run, item) {
  const numbers = element("span", { class: "numbers" });
  const adapter = adapterOf(run, item.agent);
  const who = element(
    "h4",
    { class: "who" },
    chip(colour(run, item.agent)),
    element("span", { class: "agent" }, item.agent ?? "nobody"),
    adapter && element("span", { class: "aside" }, adapter),
    item.node !== item.agent && element("span", { class: "aside" }, item.node),
  );
  const text = element("p", { class: "said", dir: "auto" });
  const node = element("li", { class: "turn", "data-agent": item.agent }, element("div", { class: "line" }, who, numbers), text);
  node.style.setProperty("--colour", colour(run, item.agent));

  return {
    node,
    update() {
      pieces(text, item.parts);
      if (item.turns.length) say(numbers, cost(item.turns));
      else if (item.state === "lost") say(numbers, "");
    },
  };
}

function cost(turns) {
  const [first, last] = [turns[0], turns.at(-1)];
  const number = first === last ? `turn ${first.number}` : `turns ${first.number}–${last.number}`;
  return `${number} · ${share(first.cached, first.prompt)} cached · ${seconds(first.ttft)}`;
}

function folded(run, item) {
  const title = element("span", { class: "agent" });
  const aside = element("span", { class: "aside" });
  const preview = element("span", { class: "preview", dir: "auto" });
  const text = element("p", { class: "said", dir: "auto" });
  const value = colour(run, null, item.kind === "opening");
  const summary = element("summary", {}, chip(value), title, aside, preview);
  const node = element("li", { class: "folded" }, element("details", {}, summary, text));
  node.style.setProperty("--colour", value);

  return {
    node,
    update() {
      const { observation } = item;
      if (item.kind === "opening") say(title, "Opening");
      else if (observation) say(title, observation.argument ? `${observation.tool}[${observation.argument}]` : observation.tool);
      else say(title, item.node);
      const notes = [
        item.kind === "tool" && !observation && "written by the graph",
        observation && !observation.ok && "failed",
        observation && seconds(observation.seconds),
        item.tokens !== null && many(item.tokens, "token"),
      ];
      say(aside, notes.filter(Boolean).join(" · "));
      const known = item.parts.length ? item.parts : observation ? [{ kind: "written", text: observation.text }] : [];
      if (known.length) pieces(text, known);
      else say(text, item.kind === "opening" ? "What all agents read first; its text is not at hand." : "");
      say(preview, (observation?.text ?? known.map((part) => part.text).join("")).slice(0, 160).trim());
    },
  };
}

function note(run, item) {
  return { node: element("li", { class: "note" }, element("p", { dir: "auto" }, item.text)), update() {} };
}

/** One element a part. While a turn streams, only the last text node grows. */
function pieces(where, parts) {
  parts.forEach(({ kind, text }, place) => {
    let piece = where.children[place];
    if (piece === undefined) {
      piece = element("span", { class: kind }, document.createTextNode(""));
      where.append(piece);
    }
    const data = piece.firstChild;
    if (data.length < text.length) data.appendData(text.slice(data.length));
  });
}

/** A note says once where the trajectory was cut; who does not see the grey is told at each part. */
function gone(node, state) {
  if (node.querySelector(":scope > .gone") !== null) return;
  node.append(element("p", { class: state === "cut" ? "gone unseen" : "gone" }, GONE[state]));
}
