// Requests to the coordinator, with a bearer token if there is one. The token is kept in this tab until the tab is
// closed or the coordinator refuses it. The token is sent in a header, never in a URL.

const PLACE = "token";
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

// Send a request and return the response. Throws if there is no connection or no response in time.
export async function ask(path, { signal, lateMs = LATE_MS }) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const end = new AbortController();
  const late = setTimeout(() => end.abort(new Error("no answer")), lateMs);
  signal.addEventListener("abort", () => end.abort(signal.reason), { once: true });
  try {
    const response = await fetch(path, { signal: end.signal, headers, cache: "no-store" });
    return { ok: response.ok, status: response.status, text: await response.text() };
  } finally {
    clearTimeout(late);
  }
}
