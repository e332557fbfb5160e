/**
 * One run, as its events tell it. Knows nothing of the page: `apply` each event in order, then read the fields.
 * The same events always lead to the same state, so a reload only has to replay them.
 *
 * items: what was said, in order: {kind: turn|opening|tool|note, node, agent, parts: [{kind, text}], state, …}.
 *   state: "open" until the step has ended, then "kept"; "lost" if it never ended, "cut" if it was dropped later.
 * spans: the trajectory: {node, agent, opening, start, end, items}, each right behind the one before.
 * turns: the requests: {agent, prompt, cached, others, output, ttft, alone, until, state}. `until` is how far the turn
 *   read what still stands: less than `cached` once the trajectory has been cut.
 */
export class Run {
  about = null;
  agents = [];
  items = [];
  spans = [];
  turns = [];
  status = "running"; // or ended, failed, stopped
  end = null; // the last event, once there is one
  news = null; // what a listener should hear next
  changed = new Set(); // items, since the page last looked
  #open = new Map(); // node → what it has said and asked so far
  #observed = null; // an observation whose text has yet to be written

  get length() {
    return this.spans.at(-1)?.end ?? 0;
  }

  /** Those who speak now. */
  get speaking() {
    const last = [...this.#open.values()].map((open) => open.items.at(-1));
    return last.filter((item) => item?.kind === "turn").map((item) => item.agent);
  }

  /** About how many tokens have been written that no step has counted yet. */
  get uncounted() {
    let characters = 0;
    for (const { items } of this.#open.values()) {
      for (const { parts } of items) for (const { text } of parts) characters += text.length;
    }
    return Math.ceil(characters / 4);
  }

  apply(event) {
    switch (event.event) {
      case "run":
        this.about = event;
        this.agents = Object.keys(event.agents ?? {});
        break;
      case "turn":
        this.#add({ kind: "turn", node: event.node, agent: event.agent });
        if (event.cue) this.#write(event.node, "cue", event.cue);
        break;
      case "text":
        this.#write(event.node, "said", event.text);
        break;
      case "written":
        this.#write(event.node, "written", event.text);
        break;
      case "observation":
        this.#observed = this.#add({ kind: "tool", node: null, agent: null, observation: event });
        break;
      case "turn_end":
        this.#asked(event);
        break;
      case "step":
        this.#step(event);
        break;
      case "resumed":
        this.#lose();
        this.status = "running";
        this.end = null;
        this.#add({ kind: "note", text: "The run goes on." });
        break;
      case "result":
        this.#over("ended", event);
        this.news = event.answer == null ? "The run has ended without an answer." : `Answer: ${event.answer}`;
        break;
      case "failed":
        this.#over("failed", event);
        this.#add({ kind: "note", text: `The run failed. ${event.message}` });
        break;
      case "stopped":
        this.#over("stopped", event);
        this.#add({ kind: "note", text: "The run was stopped." });
        this.news = "The run was stopped.";
        break;
    }
  }

  #node(name) {
    if (!this.#open.has(name)) this.#open.set(name, { items: [], turns: [] });
    return this.#open.get(name);
  }

  #add(fields) {
    const item = { parts: [], turns: [], state: fields.kind === "note" ? "kept" : "open", tokens: null, ...fields };
    this.items.push(item);
    this.changed.add(item);
    if (item.node !== null && item.node !== undefined) this.#node(item.node).items.push(item);
    return item;
  }

  /** Within a turn a text belongs to it; outside it is a tool's, if one has just answered, or the graph's. */
  #write(node, kind, text) {
    let item = this.#node(node).items.at(-1);
    if (item === undefined && this.#observed !== null) {
      item = this.#observed;
      item.node = node;
      this.#node(node).items.push(item);
      this.#observed = null;
    }
    item ??= this.#add({ kind: node === "opening" ? "opening" : "tool", node, agent: null });
    const last = item.parts.at(-1);
    if (last?.kind === kind) last.text += text;
    else item.parts.push({ kind, text });
    this.changed.add(item);
  }

  #asked(event) {
    const turn = {
      node: event.node,
      agent: event.agent,
      prompt: event.prompt_tokens,
      cached: event.cached_tokens,
      others: event.cross_agent,
      output: event.output_tokens,
      ttft: event.ttft,
      alone: null,
      until: event.cached_tokens,
      state: "open",
    };
    this.turns.push(turn);
    turn.number = this.turns.length;
    const open = this.#node(event.node);
    open.turns.push(turn);
    const item = open.items.findLast((one) => one.kind === "turn");
    if (item !== undefined) {
      item.turns.push(turn);
      this.changed.add(item);
    }
  }

  #step(event) {
    const open = this.#node(event.node);
    this.#open.delete(event.node);
    if (this.#observed !== null && event.agent === null) {
      open.items.push(this.#observed);
      this.#observed.node = event.node;
      this.#observed = null;
    }
    if (event.start < this.length) this.#cut(event.start, open.turns, event.node);
    const opening = event.node === "opening";
    if (!open.items.length) {
      const kind = opening ? "opening" : event.agent === null ? "tool" : "turn";
      const item = this.#add({ kind, node: event.node, agent: event.agent });
      this.#open.delete(event.node);
      open.items = [item];
    }
    open.turns.forEach((turn, place) => {
      turn.alone = event.alone?.[place] ?? null;
      turn.state = "kept";
    });
    for (const item of open.items) {
      item.state = "kept";
      this.changed.add(item);
    }
    open.items.at(-1).tokens = event.tokens;
    if (event.tokens > 0) {
      const end = event.start + event.tokens;
      const span = { node: event.node, agent: event.agent, opening, start: event.start, end, items: open.items };
      this.spans.push(span);
    }
    if (event.agent !== null) this.news = `${event.agent}: ${textOf(open.items).trim()}`;
  }

  /** Drop what stands from `position` on. The turns of the step that cuts have read what comes in its place. */
  #cut(position, own, node) {
    const dropped = this.spans.filter((span) => span.end > position);
    for (const span of dropped) {
      if (span.start < position) continue;
      for (const item of span.items) {
        item.state = "cut";
        this.changed.add(item);
      }
    }
    this.spans = this.spans
      .filter((span) => span.start < position)
      .map((span) => (span.end > position ? { ...span, end: position, shortened: true } : span));
    const kept = `the trajectory was cut to its first ${position} tokens`;
    this.#add({ kind: "note", text: `Before ${node}, ${kept}: what stands above in grey is no longer part of it.` });
    for (const turn of this.turns) {
      if (!own.includes(turn)) turn.until = Math.min(turn.until, position);
    }
  }

  #over(status, event) {
    this.#lose();
    this.status = status;
    this.end = event;
  }

  /** What has no step by now never gets one: the step is said anew if the run goes on. */
  #lose() {
    const open = [...this.#open.values()];
    if (this.#observed !== null) open.push({ items: [this.#observed], turns: [] });
    for (const { items, turns } of open) {
      for (const turn of turns) turn.state = "lost";
      for (const item of items) {
        item.state = "lost";
        this.changed.add(item);
      }
    }
    this.#open.clear();
    this.#observed = null;
  }

  /** Who found this span in the cache: agent → {turns, tokens}. What a request has cached is always its beginning. */
  readersOf(span) {
    const readers = new Map();
    for (const turn of this.turns) {
      if (turn.state === "lost" || turn.until <= span.start) continue;
      const reader = readers.get(turn.agent) ?? { turns: 0, tokens: 0 };
      reader.turns += 1;
      reader.tokens = Math.max(reader.tokens, Math.min(turn.until, span.end) - span.start);
      readers.set(turn.agent, reader);
    }
    return readers;
  }
}

export function textOf(items) {
  return items
    .map((item) => {
      const written = item.parts.map((part) => part.text).join("");
      return written || item.observation?.text || "";
    })
    .join("");
}
