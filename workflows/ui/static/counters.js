/** The sums of a run, and what separate caches would have cost, estimated. */

import { $, count, element, many, say, seconds, share } from "./dom.js";

const FIGURES = [
  ["reused", "Reused across agents"],
  ["saved", "Prefill saved"],
  ["generated", "Generated"],
  ["ttft", "TTFT, median"],
];

export function counters() {
  const figures = {};
  for (const [name, title] of FIGURES) {
    const value = element("span", { class: "value", "data-counter": name });
    const unit = element("span", { class: "unit" });
    figures[name] = { value, unit };
    $("counters").append(element("div", {}, element("dt", {}, title), element("dd", {}, value, " ", unit)));
  }
  const shared = bar("shared");
  const alone = bar("alone");
  const ratio = element("p", { class: "small", "data-counter": "ratio" });
  $("estimate").append(element("dl", { class: "bars" }, ...shared.nodes, ...alone.nodes), ratio);

  function set(name, value, unit) {
    say(figures[name].value, value);
    say(figures[name].unit, unit);
  }

  return {
    update(run) {
      // As in the result: what was lost with its step does not count.
      const turns = run.turns.filter((turn) => turn.state !== "lost");
      const prompt = sum(turns, "prompt");
      const cached = sum(turns, "cached");
      const others = sum(turns, "others");
      set("reused", count(others), `tokens, ${share(others, prompt)} of all prompts`);
      set("saved", count(cached), `tokens, ${share(cached, prompt)} of all prompts`);
      set("generated", count(sum(turns, "output")), `tokens in ${many(turns.length, "turn")}`);
      set("ttft", seconds(median(turns.map((turn) => turn.ttft))), "to the first token");

      const known = turns.filter((turn) => turn.alone !== null);
      const here = sum(known, "prompt") - sum(known, "cached");
      const apart = sum(known, "prompt") - sum(known, "alone");
      const most = Math.max(here, apart, 1);
      shared.set(`This run${run.about?.scheme ? ` (${run.about.scheme})` : ""}`, here, most);
      alone.set("Separate caches (nonshared), estimate", apart, most);
      const times = here > 0 ? apart / here : 0;
      const sentence = `Separate caches would have prefilled ${times.toFixed(1)} times as many tokens.`;
      say(ratio, known.length && times >= 1.05 ? sentence : "");
    },
  };
}

function bar(name) {
  const title = element("dt");
  const fill = element("span", { class: `bar ${name}`, "aria-hidden": "true" });
  const value = element("span", { "data-counter": `prefilled-${name}` });
  return {
    nodes: [title, element("dd", {}, fill, value)],
    set(label, tokens, most) {
      say(title, label);
      say(value, `${count(tokens)} prefilled`);
      fill.style.setProperty("--part", tokens / most);
    },
  };
}

const sum = (turns, field) => turns.reduce((total, turn) => total + (turn[field] ?? 0), 0);

function median(values) {
  const sorted = values.filter(Number.isFinite).sort((one, other) => one - other);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
