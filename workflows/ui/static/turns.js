/** A row for each request to the model: what it read, what of that was cached, and whose that was. */

import { chip, colour } from "./colours.js";
import { $, count, element, say, seconds } from "./dom.js";

export function turns() {
  const body = $("turns").tBodies[0];
  const scroller = $("turns-scroll");
  let rows = [];

  return {
    reset() {
      rows = [];
      body.replaceChildren();
    },

    update(run) {
      const atEnd = scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 8;
      for (const turn of run.turns.slice(rows.length)) {
        const cells = [turn.prompt, turn.cached, turn.others].map((tokens) => element("td", {}, count(tokens)));
        const alone = element("td");
        const state = element("span", { class: "aside" });
        const row = element(
          "tr",
          { "data-turn": turn.number, "data-agent": turn.agent },
          element("th", { scope: "row" }, String(turn.number)),
          element("td", { class: "name" }, chip(colour(run, turn.agent)), turn.agent, state),
          ...cells,
          element("td", {}, seconds(turn.ttft)),
          alone,
        );
        body.append(row);
        rows.push({ turn, row, alone, state });
      }
      for (const { turn, row, alone, state } of rows) {
        row.dataset.state = turn.state;
        say(alone, turn.alone === null ? "–" : count(turn.alone));
        say(state, turn.state === "lost" ? " not kept" : "");
      }
      if (atEnd) scroller.scrollTop = scroller.scrollHeight;
    },
  };
}
