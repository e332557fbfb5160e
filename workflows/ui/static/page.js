/** The page: which run the address names, its events, and what shows them. */

import { get, post } from "./api.js";
import { asking } from "./ask.js";
import { band } from "./band.js";
import { counters } from "./counters.js";
import { $, say } from "./dom.js";
import { Run } from "./run.js";
import { pastRuns } from "./runs.js";
import { watchServer } from "./server.js";
import { follow } from "./stream.js";
import { transcript } from "./transcript.js";
import { turns } from "./turns.js";

const RUNS_EVERY_MS = 5000;
const NEAR_END_PX = 80;
const SETTLED_MS = 400; // what comes within it after a run was opened is its past, and moves and announces nothing

const views = { transcript: transcript(), turns: turns(), counters: counters() };
const ribbon = band((span) => views.transcript.goTo(span));
const form = asking((thread) => {
  go(thread);
  runs.refresh();
});
const runs = pastRuns(titleOf, compare);
let setup = { workflows: [], questions: [] };
let current = null; // {thread, run, stream, over, busy, trouble, opened}
let frame = 0;
let counted = false;

function titleOf(workflow) {
  return setup.workflows.find((one) => one.name === workflow)?.title ?? workflow;
}

// ── The address ──────────────────────────────────────────────────────────────────────────────────────────────────

const named = () => new URLSearchParams(location.search).get("run");

function go(thread) {
  history.pushState(null, "", thread === null ? "./" : `?run=${encodeURIComponent(thread)}`);
  show(thread, true);
}

addEventListener("popstate", () => {
  if (named() !== (current?.thread ?? null)) show(named(), true);
});

// Links to runs stay links: another tab, another window and copying work as everywhere.
document.addEventListener("click", (event) => {
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = event.target.closest("a[data-thread], #home");
  if (link === null) return;
  event.preventDefault();
  go(link.dataset.thread ?? null);
});

// ── A run ────────────────────────────────────────────────────────────────────────────────────────────────────────

function show(thread, moveFocus) {
  current?.stream.stop();
  cancelAnimationFrame(frame);
  frame = 0;
  current = null;
  for (const view of [views.transcript, views.turns, ribbon]) view.reset();
  for (const id of ["run-error", "announcer", "run-title", "run-about"]) say($(id), "");
  $("run").hidden = thread === null;
  $("cache").hidden = true;
  $("examples").hidden = thread !== null || !setup.questions.length;
  runs.select(thread);
  document.title = "Descant";
  if (thread === null) {
    if (moveFocus) $("question").focus();
    return;
  }

  const mine = { thread, run: new Run(), over: false, busy: false, trouble: "", opened: performance.now() };
  current = mine;
  say($("run-title"), runs.find(thread)?.question ?? `Run ${thread}`);
  const still = (act) => (...given) => current === mine && act(...given);
  mine.stream = follow(thread, {
    event: still((event) => {
      mine.run.apply(event);
      if (!["text", "written", "turn"].includes(event.event)) counted = true;
      draw();
    }),
    over: still(() => {
      mine.over = true;
      runs.refresh();
      draw();
    }),
    lost: still(async (sentence) => {
      mine.lost = sentence ?? "";
      if (mine.lost) await runs.refresh();
      if (current !== mine) return;
      // Of a run that was cut off no last event will come, however long one waits.
      if (mine.lost && mine.run.status === "running" && runs.find(thread)?.status === "cut off") {
        mine.stream.stop();
        mine.over = true;
        mine.lost = "This run was cut off before it had ended.";
      }
      mine.trouble = mine.lost;
      draw();
    }),
    refused: still(async (sentence) => {
      mine.over = true;
      mine.trouble = sentence;
      await runs.refresh();
      draw();
    }),
  });
  counted = true;
  draw();
  if (moveFocus) $("run-title").focus();
  // Of a run that is under way the end is what one came for; of a past one, the beginning.
  setTimeout(still(() => mine.run.status === "running" && scrollY === 0 && toEnd()), SETTLED_MS);
}

/** Show what has come, once a frame however much that is. */
function draw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const { run } = current;
    const settled = performance.now() - current.opened > SETTLED_MS;
    const following = settled && atEnd();
    head();
    views.transcript.update(run);
    if (counted) {
      views.turns.update(run);
      views.counters.update(run);
    }
    $("cache").hidden = !run.spans.length && !run.turns.length;
    ribbon.update(run, counted);
    counted = false;
    if (run.news !== null) {
      if (settled) say($("announcer"), run.news);
      run.news = null;
    }
    if (following) toEnd();
  });
}

function head() {
  const { run, over, busy, thread } = current;
  const { about, end } = run;
  const listed = runs.find(thread);
  if (about !== null) {
    say($("run-title"), about.question);
    const parts = [titleOf(about.workflow), about.model, about.scheme, `run ${thread}`];
    say($("run-about"), parts.filter(Boolean).join(" · "));
    document.title = `${about.question} · Descant`;
  }
  const status = over && run.status === "running" ? (listed?.status ?? "") : run.status;
  $("run-status").dataset.status = status;
  say($("run-status"), sentence(run, status));
  const answered = run.status === "ended" && end.answer != null;
  $("answer").hidden = !answered;
  say($("answer").querySelector("[data-part=answer]"), answered ? String(end.answer) : "");
  say($("run-error"), current.trouble || (run.status === "failed" ? end.message : ""));
  const running = run.status === "running" && !over;
  offer($("stop"), running, busy);
  offer($("resume"), over && (end ? end.resumable : listed?.resumable), busy);
}

function offer(button, there, busy) {
  // A button that goes while it has the focus would leave it nowhere.
  if (!there && document.activeElement === button) $("run-title").focus({ preventScroll: true });
  button.hidden = !there;
  button.ariaDisabled = String(busy);
}

function sentence(run, status) {
  if (status === "ended") return `Ended: ${run.end?.ended ?? "the graph was through"}.`;
  if (status === "failed") return "Failed.";
  if (status === "stopped") return "Stopped.";
  if (status === "") return "";
  if (status !== "running") return `${status[0].toUpperCase()}${status.slice(1)}.`;
  if (run.about === null) return "Waiting for the run…";
  return run.speaking.length ? `Running: ${run.speaking.join(", ")} speaks.` : "Running.";
}

async function press(what) {
  const mine = current;
  if (mine.busy) return;
  mine.busy = true;
  mine.trouble = "";
  draw();
  try {
    await post(`runs/${encodeURIComponent(mine.thread)}/${what}`);
    if (mine !== current) return;
    if (what === "resume") {
      mine.over = false;
      mine.stream.reopen();
    }
    runs.refresh();
  } catch (error) {
    mine.trouble = error.message;
  } finally {
    mine.busy = false;
    if (mine === current) draw();
  }
}

$("stop").addEventListener("click", () => press("stop"));
$("resume").addEventListener("click", () => press("resume"));

/** The list may know more than a stream that came to nothing. */
function compare() {
  if (current?.over) draw();
}

// ── Following what is said: only while its end is in sight ───────────────────────────────────────────────────────

function atEnd() {
  const { bottom } = $("transcript").getBoundingClientRect();
  return bottom > 0 && bottom < innerHeight + NEAR_END_PX;
}

function toEnd() {
  const { bottom } = $("transcript").getBoundingClientRect();
  if (bottom > innerHeight) scrollBy({ top: bottom - innerHeight + 24, behavior: "instant" });
}

// ── The beginning ────────────────────────────────────────────────────────────────────────────────────────────────

async function begin() {
  try {
    setup = { ...setup, ...(await get("setup")) };
    form.show(setup);
    $("examples").hidden = current !== null || !setup.questions.length;
    runs.redraw();
    if (current) draw();
  } catch (error) {
    form.fail(error.message);
    setTimeout(begin, RUNS_EVERY_MS);
  }
}

// Beside a wide page the list of runs stands open; above a narrow one it is folded.
const wide = matchMedia("(min-width: 75rem)");
const fold = () => ($("runs-fold").open = wide.matches);
wide.addEventListener("change", fold);
fold();

async function keepRuns() {
  if (!document.hidden && (runs.anyRunning || $("runs-error").textContent)) await runs.refresh();
  setTimeout(keepRuns, RUNS_EVERY_MS);
}

watchServer();
show(named(), false);
begin();
runs.refresh().then(keepRuns);
