/** Who has which colour: agents in the order in which the run names them; style.css has the values for both themes. */

import { element } from "./dom.js";

const AGENT_COLOURS = 6;

export function colour(run, agent, opening = false) {
  if (opening) return "var(--opening)";
  if (agent === null) return "var(--tool)";
  const place = run.agents.indexOf(agent);
  return place < 0 ? "var(--tool)" : `var(--agent-${(place % AGENT_COLOURS) + 1})`;
}

/** A small square of a colour; the name stands beside it. */
export function chip(value) {
  const made = element("span", { class: "chip", "aria-hidden": "true" });
  made.style.setProperty("--colour", value);
  return made;
}

/** "judge (base model)", "planner (adapter plan)", or the name alone where adapter and agent have one name. */
export function adapterOf(run, agent) {
  const adapter = run.about?.agents?.[agent];
  if (adapter === undefined || adapter === agent) return "";
  return adapter === null ? "base model" : `adapter ${adapter}`;
}
