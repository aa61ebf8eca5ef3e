// The page: the URL selects the view, and the API provides its data. The page polls the status of the coordinator and of
// its shards. A changed shard triggers a request for the data of the view.

import * as api from "./api.js";
import { address, bytes, el, replaceContent, escapeInvisible, since } from "./elements.js";
import { deliveryHistory } from "./history.js";
import * as views from "./views.js";

// The polling interval of the status. The cost of the status does not depend on the size of the state.
const STATUS_INTERVAL_MS = 1000;
const STATUS = ["/healthz", "/api/v1/shards?limit=10000"];
// Without a status for this time, the connection is considered lost.
const SILENT_MS = 8000;
// The polling interval of data that changes without a change of a shard, such as lag.
const REQUEST_INTERVAL_MS = 5000;
// A list over a large state takes long, so requests use at most a fifth of the time.
const PAUSE_PER_REQUEST = 5;
const REQUEST_PAUSE_MIN_MS = 1000;

const $ = (id) => document.getElementById(id);

const context = { view: {}, overview: null, shards: new Map() };
let shown = null;  // the view, its element and its update function
let paused = false;
let needsToken = false;  // true while a token is required
let statusRequest = null;  // the AbortController of the request for the status
let statusTimer = 0;
let viewRequest = null;  // the AbortController of the request for the view
let hasMissedChange = false;  // a shard changed during the request
let askedAt = 0;
let requestMs = 0;
let timer = 0;
let hasShards = false;  // true after the first response with the shards
let lastDrawn = "";  // the content that was drawn last
let requested = "";  // the requests that were sent last
let isDrawingHeld = false;  // new data is not drawn because text is selected
let lastResponseMs = 0;  // when the coordinator last sent something
let isPressed = false;  // a mouse button or a finger is down

// Navigation.

function read(search) {
  return Object.fromEntries(new URLSearchParams(search));
}

function viewKind(view) {
  if (view.view === "history") return deliveryHistory;
  if (view.group !== undefined && view.topic !== undefined && view.partition !== undefined) return views.sharePartition;
  if (view.group !== undefined) return views.group;
  return view.view === "shards" ? views.shards : views.groups;
}

// The parameters that identify a view; the others select a part of it.
const viewKey = ({ view, group, topic, partition }) => JSON.stringify([view, group, topic, partition]);

function showView(view, { focus = false } = {}) {
  const kind = viewKind(view);
  const same = shown && shown.kind === kind && viewKey(shown.view) === viewKey(view);
  context.view = view;
  if (!same) {
    const built = kind.build(view, go);
    if (shown) $("main").focus({ preventScroll: true });
    shown = { kind, ...built };
    lastDrawn = "";
    $("main").replaceChildren(built.node);
    built.node.prepend(el("p", { class: "quiet waiting" }, "Loading…"));
    scrollTo(0, 0);
  }
  shown.view = view;
  document.title = `${kind.title(view)} · Share coordinator`;
  for (const [id, here] of [["to-groups", kind !== views.shards], ["to-shards", kind === views.shards]]) {
    if (here) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  if (needsToken) return showTokenForm({});
  // A move within the loaded data needs no request.
  if (same && shown.answers && JSON.stringify(kind.requests(view)) === requested) draw({ moved: true, focus });
  else requestView({ moved: true, focus });
}

function go(change, { replace = false, focus = false } = {}) {
  const view = { ...context.view, ...change };
  const to = address(view);
  if (replace || (change.at !== undefined && context.view.at !== undefined)) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  showView(read(location.search), { focus });
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("a[href]");
  if (!target || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const url = new URL(target.href);
  if (url.origin !== location.origin || url.pathname !== "/" || url.hash) return;
  event.preventDefault();
  history.pushState(null, "", url);
  showView(read(url.search));
});
addEventListener("pointerdown", () => { isPressed = true; });
for (const over of ["pointerup", "pointercancel", "dragend", "blur"]) {
  // setTimeout delays this until the click event was handled.
  addEventListener(over, () => setTimeout(() => { isPressed = false; draw(); }));
}
document.addEventListener("selectionchange", () => { if (isDrawingHeld && getSelection().isCollapsed) draw(); });
addEventListener("popstate", () => showView(read(location.search)));

// Requests.

async function requestView(how = {}) {
  clearTimeout(timer);
  viewRequest?.abort();
  const mine = (viewRequest = new AbortController());
  hasMissedChange = false;
  const requests = shown.kind.requests(context.view);
  requested = JSON.stringify(requests);
  askedAt = performance.now();
  try {
    const answers = {};
    let said = "";
    for (const [name, path] of Object.entries(requests)) {
      const { ok, status, text } = await api.request(path, { signal: mine.signal });
      answers[name] = JSON.parse(text);
      if (mine.signal.aborted) return;
      if (status === 401) return showTokenForm(answers[name]);
      if (!ok) return showRefusal(answers[name]);
      said += text;
    }
    requestMs = performance.now() - askedAt;
    lastResponseMs = Date.now();
    Object.assign(shown, { answers, said, requested });
    draw(how);
  } catch (error) {
    if (error.name !== "AbortError") showConnectionLost();
  } finally {
    if (viewRequest === mine) { viewRequest = null; scheduleRequest(hasMissedChange ? 0 : REQUEST_INTERVAL_MS); }
  }
}

// Schedule the next request with a minimum pause; a slow request is not aborted for the next one.
function scheduleRequest(ms) {
  if (!isActive() || (shown.kind.once && shown.answers)) return;
  clearTimeout(timer);
  const rest = Math.max(REQUEST_PAUSE_MIN_MS, requestMs * PAUSE_PER_REQUEST) - (performance.now() - askedAt);
  timer = setTimeout(() => { if (viewRequest) hasMissedChange = true; else requestView(); }, Math.max(ms, rest, 0));
}

// Draw the responses; `moved` after a navigation, `focus` to focus the selected offset.
function draw({ moved = false, focus = false } = {}) {
  if (!shown.answers || (shown.kind === views.shards && !hasShards)) return;
  // After a navigation, the response may be missing yet, and the previous response belongs to another view.
  if (shown.requested !== JSON.stringify(shown.kind.requests(context.view))) return;
  // If a link is redrawn between press and release, the browser sends no click.
  if (!moved && isPressed) return;
  // Do not redraw the same content.
  const content = [JSON.stringify(context.view), shown.said, drawnShards(), context.overview?.cluster_error, context.overview?.missing_access].join("\n");
  const same = content === lastDrawn && !moved;
  // While text is selected, nothing is redrawn, and the pause button shows this.
  const selection = getSelection();
  const marked = !same && !moved && !selection.isCollapsed && $("main").contains(selection.anchorNode);
  if (marked !== isDrawingHeld) { isDrawingHeld = marked; updateButtons(); }
  if (same || marked) return;
  lastDrawn = content;
  shown.node.querySelector(".waiting")?.remove();
  $("main").querySelector(".refused")?.remove();
  shown.node.hidden = false;
  shown.update(shown.answers, context);
  if (focus) shown.node.querySelector('[role="option"][aria-selected="true"]')?.focus();
}

function drawnShards() {
  const all = [...context.shards.values()];
  if (shown.kind === views.shards) return JSON.stringify(all);
  return JSON.stringify([context.overview?.shards, all.map((shard) => [shard.here, shard.status, shard.owner])]);
}

const REFUSALS = { 403: "Not allowed", 404: "Not found", 429: "Too many attempts" };

function showRefusal(problem) {
  lastDrawn = "";
  shown.node.hidden = true;
  const there = problem.owner && views.ownerLink(problem.owner);
  const notice = el("div", { class: "refused" },
    el("h1", {}, REFUSALS[problem.status] ?? "Not available"),
    el("p", {}, escapeInvisible(String(problem.message ?? "The coordinator did not answer.")), "."),
    there && el("p", {}, "The owner is ", there, "."),
    el("p", {}, el("a", { href: "/" }, "All share groups")));
  $("main").querySelector(".refused")?.remove();
  $("main").append(notice);
}

// Show the token form; a token that was sent before is no longer valid.
function showTokenForm(problem) {
  if (needsToken && $("main").querySelector(".token")) return;
  const had = api.hasToken();
  needsToken = true;
  lastDrawn = "";
  api.storeToken("");
  stopPolling();
  viewRequest?.abort();
  showStatusPill("bad", "token required");
  shown.node.hidden = true;
  const field = el("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const form = el("form", { class: "token", on: { submit: (event) => { event.preventDefault(); submitToken(field.value.trim()); } } },
    el("h1", {}, "This coordinator requires a token"),
    el("p", { role: had ? "alert" : null }, had ? "The token is not valid." : "The token identifies you."),
    el("label", { for: "token" }, "Token"), field, el("button", { type: "submit" }, "Continue"),
    el("p", { class: "quiet", title: escapeInvisible(String(problem.message ?? "")) }, "The token is kept in this tab until you close it."));
  $("main").querySelectorAll(".token, .refused").forEach((node) => node.remove());
  $("main").append(form);
  field.focus();
  updateButtons();
}

function submitToken(token) {
  if (!token) return;
  api.storeToken(token);
  needsToken = false;
  showStatusPill("", "…");
  $("main").querySelector(".token")?.remove();
  shown.node.hidden = false;
  requested = "";
  requestView({ moved: true });
  pollStatus();
  updateButtons();
}

// Keep the data that is shown, with a notice that this data may be old.
function showConnectionLost() {
  showStatusPill("bad", lastResponseMs ? `no connection, data as of ${new Date(lastResponseMs).toLocaleTimeString("en-GB")}` : "no connection");
  const waiting = shown.node.querySelector(".waiting");
  if (waiting) waiting.textContent = "The coordinator does not answer. Retrying every few seconds.";
}

// Updates.

// True while updates are shown; a hidden page sends no requests.
const isActive = () => !paused && !needsToken && !document.hidden;

async function pollStatus() {
  stopPolling();
  const mine = (statusRequest = new AbortController());
  try {
    const answers = await Promise.all(STATUS.map((path) => api.request(path, { signal: mine.signal, timeoutMs: SILENT_MS })));
    if (mine.signal.aborted) return;
    const [health, shards] = answers.map(({ text }) => JSON.parse(text));
    if (answers.some(({ status }) => status === 401)) return showTokenForm(shards);
    if (!shards.items) return;
    lastResponseMs = Date.now();
    showSummary(health);
    updateShards(shards.items);
  } catch {
    if (!mine.signal.aborted) showConnectionLost();
  } finally {
    if (statusRequest === mine && isActive()) statusTimer = setTimeout(pollStatus, STATUS_INTERVAL_MS);
  }
}

function stopPolling() {
  statusRequest?.abort();
  statusRequest = null;
  clearTimeout(statusTimer);
}

function updateShards(shards) {
  let news = false;
  hasShards = true;
  for (const shard of shards) {
    const before = context.shards.get(shard.state_partition);
    context.shards.set(shard.state_partition, shard);
    const moved = !before || before.end_log_offset !== shard.end_log_offset || before.status !== shard.status;
    news ||= moved && affectsView(shard);
  }
  draw();
  if (news && shown.answers && shown.kind !== views.shards) scheduleRequest(0);
}

function affectsView(shard) {
  const detail = shown.answers?.detail;
  return !detail || detail.state_partition === shard.state_partition;
}

function showSummary(now) {
  context.overview = now;
  $("address").textContent = now.observes ? "observer" : now.advertise;
  showStatusPill(now.status === "ready" ? "good" : "bad", now.status);
  const reasons = $("reasons");
  const said = now.reasons.join("\n");
  if (reasons.dataset.said !== said) {
    reasons.dataset.said = said;
    reasons.hidden = !said;
    replaceContent(reasons, el("ul", {}, now.reasons.map((reason) => el("li", {}, escapeInvisible(reason)))));
  }
  const role = now.observes ? `observes ${now.observes}` : `brokers connect to ${now.listen} · log: ${now.log} · ownership: ${now.ownership}`;
  $("about").textContent = `Release ${now.version} · ${role} · ` +
    `${bytes(now.live_bytes)} of state · event loop lag ${(now.event_loop_lag_seconds * 1000).toFixed(1)} ms`;
  draw();
}

function showStatusPill(kind, text) {
  const node = $("ready");
  node.className = `pill ${kind}`;
  if (node.textContent !== text) node.textContent = text;
}

function updateButtons() {
  $("forget").hidden = !api.hasToken();
  $("live").hidden = needsToken;
  $("live").textContent = paused ? "▶ Resume" : isDrawingHeld ? "❚❚ Pause (text is selected)" : "❚❚ Pause";
  $("live").title = paused ? "Updates are paused." : isDrawingHeld ? "New data is shown when no text is selected." : "Changes are shown within two seconds.";
  $("live").setAttribute("aria-pressed", String(paused));
}

function resume() {
  if (!isActive()) return;
  pollStatus();
  requestView();
}

$("live").addEventListener("click", () => {
  paused = !paused;
  if (paused) { stopPolling(); clearTimeout(timer); } else resume();
  updateButtons();
});
$("forget").addEventListener("click", () => { api.storeToken(""); location.reload(); });
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { stopPolling(); clearTimeout(timer); } else resume();
});
setInterval(() => {
  for (const node of document.querySelectorAll("time[data-ms]")) node.textContent = since(Number(node.dataset.ms));
}, 1000);

updateButtons();
showView(read(location.search));
pollStatus();
