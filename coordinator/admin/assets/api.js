// What the page asks the coordinator, with a token where it wants one. A token lives in this tab, until it is closed
// or the coordinator does not know it any more; it goes into a header, never into an address.

const PLACE = "token";
const TRY_AGAIN_MS = 2000;
// Something comes every second: who is silent for so long hangs, or is behind a network that drops what we send.
const SILENT_MS = 8000;
// A list over very much state may take its time.
const LATE_MS = 30000;

let token = kept();

export const hasToken = () => token !== "";

export function keepToken(given) {
  token = given;
  try {
    if (given) sessionStorage.setItem(PLACE, given);
    else sessionStorage.removeItem(PLACE);
  } catch { /* A browser that keeps nothing: it is asked for again after a reload. */ }
}

function kept() {
  try { return sessionStorage.getItem(PLACE) ?? ""; } catch { return ""; }
}

function request(path, accept, signal) {
  const headers = { Accept: accept };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { signal, headers, cache: "no-store" });
}

// Ask, and return what is said. Throws if there is no connection, or no answer in time.
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

// Watch what changes until `close`: `told` hears of `opened`, `event(name, data)`, `lost(gone)` (it is tried again)
// and `refused(response)` (it is not). What only ends, as when tokens are read again, is not gone until it cannot be
// had anew. An EventSource cannot send a token, nor tell that nothing comes any more.
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
    } catch { /* Lost, as is one that ended. */ } finally {
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

// Server-sent events, as far as the coordinator writes them: one line each for name and data, then an empty one.
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
