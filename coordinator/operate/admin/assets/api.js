// Requests to the coordinator, with a bearer token if there is one. The token is kept in this tab until the tab is
// closed or the coordinator refuses it. It is sent in a header, never in a URL.

const PLACE = "token";
const TRY_AGAIN_MS = 2000;
// An event arrives every second. After this time without an event, the connection is considered lost.
const SILENT_MS = 8000;
// The timeout of a request; a list over a large state takes long.
const LATE_MS = 30000;

let token = kept();

export const hasToken = () => token !== "";

export function keepToken(given) {
  token = given;
  try {
    if (given) sessionStorage.setItem(PLACE, given);
    else sessionStorage.removeItem(PLACE);
  } catch { /* Without session storage, the user enters the token again after a reload. */ }
}

function kept() {
  try { return sessionStorage.getItem(PLACE) ?? ""; } catch { return ""; }
}

function request(path, accept, signal) {
  const headers = { Accept: accept };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { signal, headers, cache: "no-store" });
}

// Send a request and return the response. Throws if there is no connection or no response in time.
export async function ask(path, { signal } = {}) {
  const end = new AbortController();
  const late = setTimeout(() => end.abort(new Error("no answer")), LATE_MS);
  signal?.addEventListener("abort", () => end.abort(signal.reason), { once: true });
  try {
    const response = await request(path, "application/json", end.signal);
    return { ok: response.ok, status: response.status, text: await response.text() };
  } finally {
    clearTimeout(late);
  }
}

// Subscribe to the event stream until `close`. `told` has callbacks: `opened`, `event(name, data)`, `lost(gone)` (the
// subscription is retried) and `refused(response)` (it is not). `gone` is false if the server ended a working stream,
// for example because tokens were reloaded. An EventSource can neither send a token nor detect a silent connection.
export function watch(told) {
  const end = new AbortController();
  const watching = { open: false, close: () => end.abort() };
  async function listen() {
    if (end.signal.aborted) return;
    const connection = new AbortController();
    const close = () => connection.abort();
    let timer = 0;
    let gone = true;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => { gone = true; close(); }, SILENT_MS);
    };
    end.signal.addEventListener("abort", close);
    heard();
    try {
      const response = await request("/api/v1/live", "text/event-stream", connection.signal);
      if (!response.ok) return told.refused(response);
      watching.open = true;
      gone = false;
      told.opened();
      await events(response.body, heard, (name, data) => { if (!end.signal.aborted) told.event(name, data); });
    } catch { /* Handled like a stream that ended. */ } finally {
      clearTimeout(timer);
      end.signal.removeEventListener("abort", close);
    }
    watching.open = false;
    if (end.signal.aborted) return;
    told.lost(gone);
    setTimeout(listen, TRY_AGAIN_MS);
  }
  listen();
  return watching;
}

// Parse server-sent events in the coordinator's format: a line for the name, a line for the data, an empty line.
async function events(body, heard, tell) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const block of whole) {
      const fields = new Map(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.has("event")) tell(fields.get("event"), JSON.parse(fields.get("data")));
    }
  }
}
