// Requests to the coordinator, with a bearer token if there is one. The token is kept in this tab until the tab is
// closed or the coordinator refuses it. The token is sent in a header, never in a URL.

const TOKEN_KEY = "token";
// The timeout of a request; a list over a large state takes long.
const TIMEOUT_MS = 30000;

let token = storedToken();

export const hasToken = () => token !== "";

export function storeToken(newToken) {
  token = newToken;
  try {
    if (newToken) sessionStorage.setItem(TOKEN_KEY, newToken);
    else sessionStorage.removeItem(TOKEN_KEY);
  } catch { /* Without session storage, the user enters the token again after a reload. */ }
}

function storedToken() {
  try { return sessionStorage.getItem(TOKEN_KEY) ?? ""; } catch { return ""; }
}

// Send a request and return the response. Throws if there is no connection or no response in time.
export async function request(path, { signal, timeoutMs = TIMEOUT_MS }) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const end = new AbortController();
  const timer = setTimeout(() => end.abort(new Error("no answer")), timeoutMs);
  signal.addEventListener("abort", () => end.abort(signal.reason), { once: true });
  try {
    const response = await fetch(path, { signal: end.signal, headers, cache: "no-store" });
    return { ok: response.ok, status: response.status, text: await response.text() };
  } finally {
    clearTimeout(timer);
  }
}
