// What the page asks the coordinator, with a token where it wants one. A token lives in this tab, until it is closed
// or the coordinator does not know it any more; it goes into a header, never into an address.

const PLACE = "token";
const TRY_AGAIN_MS = 2000;

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

export function ask(path, { signal, accept = "application/json" } = {}) {
  const headers = { Accept: accept };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { signal, headers, cache: "no-store" });
}

// Watch what changes until `close`: `told` hears of `opened`, `event(name, data)`, `lost` (it is tried again) and
// `refused(response)` (it is not). An EventSource cannot send a token.
export function watch(told) {
  const end = new AbortController();
  const watching = { open: false, close: () => end.abort() };
  const lost = () => {
    watching.open = false;
    if (end.signal.aborted) return;
    told.lost();
    setTimeout(listen, TRY_AGAIN_MS);
  };
  async function listen() {
    if (end.signal.aborted) return;
    try {
      const response = await ask("/api/v1/live", { signal: end.signal, accept: "text/event-stream" });
      if (!response.ok) return told.refused(response);
      watching.open = true;
      told.opened();
      await events(response.body, (name, data) => { if (!end.signal.aborted) told.event(name, data); });
      lost();
    } catch { lost(); }
  }
  listen();
  return watching;
}

// Server-sent events, as far as the coordinator writes them: one line each for name and data, then an empty one.
async function events(body, tell) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const block of whole) {
      const fields = new Map(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.has("event")) tell(fields.get("event"), JSON.parse(fields.get("data")));
    }
  }
}
