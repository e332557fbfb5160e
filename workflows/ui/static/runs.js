/** Past runs, newest first; each is a link, so that it can be opened, copied and gone back to. */

import { get } from "./api.js";
import { $, element, many, say } from "./dom.js";

const FIRST = 30;
const WHEN = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });

/** titleOf: a workflow's title. onChange gets the list whenever it has been read anew. */
export function pastRuns(titleOf, onChange) {
  const list = $("runs");
  const more = $("runs-more");
  let runs = [];
  let current = null;
  let all = false;
  let entries = new Map(); // thread → its line

  more.addEventListener("click", () => {
    const next = list.children.length;
    all = true;
    draw();
    list.children[next]?.querySelector("a").focus();
  });

  function draw() {
    const shown = all ? runs : runs.slice(0, FIRST);
    const old = entries;
    entries = new Map(shown.map((run) => [run.thread, old.get(run.thread) ?? entry(run)]));
    for (const [thread, one] of old) if (!entries.has(thread)) one.node.remove();
    // Lines stay where they are, so that the focus does; new ones come in front of the one behind them.
    let behind = null;
    for (const run of [...shown].reverse()) {
      const one = entries.get(run.thread);
      if (one.node.parentNode !== list || one.node.nextSibling !== behind) list.insertBefore(one.node, behind);
      behind = one.node;
      one.show(run, titleOf(run.workflow), run.thread === current);
    }
    $("runs-none").hidden = runs.length > 0;
    more.hidden = shown.length === runs.length;
    say(more, `Show all ${many(runs.length, "run")}`);
    say($("runs-count"), runs.length ? ` (${runs.length})` : "");
  }

  return {
    async refresh() {
      try {
        runs = await get("runs");
        say($("runs-error"), "");
        draw();
        onChange(runs);
      } catch (error) {
        say($("runs-error"), error.message);
      }
    },

    select(thread) {
      current = thread;
      draw();
    },

    redraw: draw,
    find: (thread) => runs.find((run) => run.thread === thread),
    get anyRunning() {
      return runs.some((run) => run.status === "running");
    },
  };
}

function entry({ thread }) {
  const question = element("span", { class: "question", dir: "auto" });
  const answer = element("span", { class: "past-answer", dir: "auto" });
  const status = element("span", { class: "status" });
  const rest = element("span");
  const link = element(
    "a",
    { href: `?run=${encodeURIComponent(thread)}`, "data-thread": thread },
    question,
    answer,
    element("span", { class: "meta" }, status, rest),
  );
  return {
    node: element("li", {}, link),
    show(run, title, here) {
      say(question, run.question);
      say(answer, run.answer ?? "");
      say(status, run.status);
      status.dataset.status = run.status;
      const begun = new Date(run.begun);
      say(rest, ` · ${title} · ${Number.isNaN(begun.valueOf()) ? run.begun : WHEN.format(begun)}`);
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    },
  };
}
