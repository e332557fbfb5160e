/** The events of one run, each once and in order, whatever happens to the connection. */

import { eventsOf, refusal } from "./api.js";

const VAIN_AT_MOST = 3; // connections in a row that bring nothing new

/**
 * on.event(event), on.over() after the last one, on.lost(sentence | null): the connection is gone (null: it is back),
 * on.refused(sentence): it will not come back.
 */
export function follow(thread, on) {
  let source = null;
  let next = 0; // the index of the event that comes next
  let terminal = false;
  let vain = 0;

  function open() {
    source?.close();
    vain = 0;
    source = new EventSource(eventsOf(thread));
    source.addEventListener("message", take);
    source.addEventListener("open", () => {
      vain += 1;
      on.lost(null);
    });
    source.addEventListener("error", broken);
  }

  function take({ data, lastEventId }) {
    // A connection that begins anew may replay what is known already.
    const index = lastEventId === "" ? next : Number(lastEventId);
    if (index < next) return;
    next = index + 1;
    vain = 0;
    const event = JSON.parse(data);
    terminal = ["result", "failed", "stopped"].includes(event.event) || (terminal && event.event !== "resumed");
    on.event(event);
    if (event.event === "result") close();
  }

  // The server ends a stream behind its last event, but a replay may go on behind a failure that was overcome.
  async function broken() {
    if (terminal) return close();
    if (source.readyState !== EventSource.CLOSED && vain <= VAIN_AT_MOST) {
      on.lost("The connection to this page’s own server is lost: trying again.");
      return;
    }
    const mine = source;
    mine.close();
    const why = await refusal(thread);
    if (mine === source) on.refused(why ?? "The events of this run ended before the run did.");
  }

  function close() {
    source?.close();
    source = null;
    on.over();
  }

  open();
  return {
    reopen: open,
    stop() {
      source?.close();
      source = null;
    },
  };
}
