/** The page's own server. What goes wrong is an Error whose message is a sentence for the page. */

const UNREACHABLE = "This page’s own server does not answer: see whether it is still running.";

export const eventsOf = (thread) => `api/runs/${encodeURIComponent(thread)}/events`;

export const get = (path) => call(path, {}, 10_000);

export const post = (path, body) =>
  call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });

async function call(path, options, patience = 60_000) {
  let response;
  try {
    response = await fetch(`api/${path}`, { ...options, signal: AbortSignal.timeout(patience) });
  } catch {
    throw new Error(UNREACHABLE);
  }
  const text = await response.text().catch(() => "");
  const answer = parsed(text);
  if (!response.ok) throw new Error(reason(response.status, answer));
  if (text && answer === undefined) throw new Error("This page’s own server gave an answer that cannot be read.");
  return answer;
}

/** Why the events of a run cannot be had, which EventSource itself keeps from us; null if they can. */
export async function refusal(thread) {
  const stop = new AbortController();
  try {
    const response = await fetch(eventsOf(thread), { signal: stop.signal });
    if (response.ok) return null;
    return reason(response.status, parsed(await response.text()));
  } catch {
    return UNREACHABLE;
  } finally {
    stop.abort();
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function reason(status, answer) {
  const detail = answer?.detail;
  if (typeof detail === "string" && detail) return detail;
  if (Array.isArray(detail) && detail.length) {
    const parts = detail.map((one) => `${one?.loc?.at?.(-1) ?? "request"}: ${one?.msg ?? "not valid"}`);
    return `The server refused what this page sent (${parts.join("; ")}).`;
  }
  return `This page’s own server answered with status ${status} and gave no reason.`;
}
