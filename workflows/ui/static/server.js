/** The header's line: which server there is, or why there is none. */

import { get } from "./api.js";
import { $, say } from "./dom.js";

const EVERY_MS = 5000;

export function watchServer() {
  const line = $("server");
  const text = line.querySelector("[data-part=text]");

  function show(state, sentence) {
    line.dataset.up = state;
    say(text, sentence);
  }

  async function look() {
    try {
      const server = await get("server");
      show(server.up ? (server.message ? "warned" : "up") : "down", sentence(server));
    } catch (error) {
      show("down", error.message);
    }
  }

  // One look at a time, and none while nobody sees the page.
  async function again() {
    if (!document.hidden) await look();
    setTimeout(again, EVERY_MS);
  }
  document.addEventListener("visibilitychange", () => document.hidden || look());
  again();
}

function sentence({ up, model, scheme, adapters, message }) {
  if (!up) return message ?? "The model’s server cannot be reached.";
  const names = adapters?.length ? `adapters ${adapters.join(", ")}` : "no adapters";
  const about = [model, scheme, names].filter(Boolean).join(" · ");
  return message ? `${about}. ${message}` : about;
}
