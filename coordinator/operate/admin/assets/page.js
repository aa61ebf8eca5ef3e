// The page: the URL selects the view, and the API provides its data. The page polls the status of the coordinator and of
// its shards. A changed shard triggers a request for the data of the view.

import * as api from "./api.js";
import { address, bytes, el, refill, seen, since } from "./elements.js";
import { deliveryHistory } from "./history.js";
import * as views from "./views.js";

// The polling interval of the status. The cost of the status does not depend on the size of the state.
const LOOK_EVERY_MS = 1000;
const STATUS = ["/healthz", "/api/v1/shards?limit=10000"];
// Without a status for this time, the connection is considered lost.
const SILENT_MS = 8000;
// The polling interval of data that changes without a change of a shard, such as lag.
const ASK_EVERY_MS = 5000;
// A list over a large state takes long, so requests use at most a fifth of the time.
const ASK_SHARE = 5;
const ASK_AT_LEAST_MS = 1000;

const $ = (id) => document.getElementById(id);

const context = { view: {}, overview: null, shards: new Map() };
let shown = null;          // the view, its element and its update function
let paused = false;
let wanting = false;       // true while a token is required
let looking = null;        // the AbortController of the request for the status
let lookTimer = 0;
let asking = null;         // the AbortController of the request for the view
let missed = false;        // a shard changed during the request
let askedAt = 0;
let tookMs = 0;
let timer = 0;
let lastLooks = "";         // the content that was drawn last
let requested = "";         // the requests that were sent last
let held = false;           // new data is not drawn because text is selected
let freshMs = 0;            // when the coordinator last sent something
let pressed = false;        // a mouse button or a finger is down

// Navigation.

function read(search) {
  return Object.fromEntries(new URLSearchParams(search));
}

function chosen(view) {
  if (view.view === "history") return deliveryHistory;
  if (view.group !== undefined && view.topic !== undefined && view.partition !== undefined) return views.sharePartition;
  if (view.group !== undefined) return views.group;
  return view.view === "shards" ? views.shards : views.groups;
}

// The parameters that identify a view; the others select a part of it.
const place = ({ view, group, topic, partition }) => JSON.stringify([view, group, topic, partition]);

function arrive(view, { focus = false } = {}) {
  const kind = chosen(view);
  const same = shown && shown.kind === kind && place(shown.view) === place(view);
  context.view = view;
  if (!same) {
    const built = kind.build(view, go);
    if (shown) $("main").focus({ preventScroll: true });
    shown = { kind, ...built };
    lastLooks = "";
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
  if (wanting) return want({});
  // A move within the loaded data needs no request.
  if (same && shown.answers && JSON.stringify(kind.ask(view)) === requested) draw({ moved: true, focus });
  else ask({ moved: true, focus });
}

function go(change, { replace = false, focus = false } = {}) {
  const view = { ...context.view, ...change };
  const to = address(view);
  if (replace || (change.at !== undefined && context.view.at !== undefined)) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  arrive(read(location.search), { focus });
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("a[href]");
  if (!target || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const url = new URL(target.href);
  if (url.origin !== location.origin || url.pathname !== "/" || url.hash) return;
  event.preventDefault();
  history.pushState(null, "", url);
  arrive(read(url.search));
});
addEventListener("pointerdown", () => { pressed = true; });
for (const over of ["pointerup", "pointercancel", "dragend", "blur"]) {
  // setTimeout delays this until the click event was handled.
  addEventListener(over, () => setTimeout(() => { pressed = false; draw(); }));
}
document.addEventListener("selectionchange", () => { if (held && getSelection().isCollapsed) draw(); });
addEventListener("popstate", () => arrive(read(location.search)));

// Requests.

async function ask(how = {}) {
  clearTimeout(timer);
  asking?.abort();
  const mine = (asking = new AbortController());
  missed = false;
  const asked = shown.kind.ask(context.view);
  requested = JSON.stringify(asked);
  askedAt = performance.now();
  try {
    const answers = {};
    let said = "";
    for (const [name, path] of Object.entries(asked)) {
      const { ok, status, text } = await api.ask(path, { signal: mine.signal });
      answers[name] = JSON.parse(text);
      if (mine.signal.aborted) return;
      if (status === 401) return want(answers[name]);
      if (!ok) return refuse(answers[name]);
      said += text;
    }
    tookMs = performance.now() - askedAt;
    freshMs = Date.now();
    Object.assign(shown, { answers, said, asked: requested });
    draw(how);
  } catch (error) {
    if (error.name !== "AbortError") lost();
  } finally {
    if (asking === mine) { asking = null; later(missed ? 0 : ASK_EVERY_MS); }
  }
}

// Schedule the next request with a minimum pause; a slow request is not aborted for the next one.
function later(ms) {
  if (!isActive() || (shown.kind.once && shown.answers)) return;
  clearTimeout(timer);
  const rest = Math.max(ASK_AT_LEAST_MS, tookMs * ASK_SHARE) - (performance.now() - askedAt);
  timer = setTimeout(() => { if (asking) missed = true; else ask(); }, Math.max(ms, rest, 0));
}

// Draw the responses; `moved` after a navigation, `focus` to focus the selected offset.
function draw({ moved = false, focus = false } = {}) {
  if (!shown.answers || (shown.kind === views.shards && !context.shards.size)) return;
  // After a navigation, the response may be missing yet, and the previous response belongs to another view.
  if (shown.asked !== JSON.stringify(shown.kind.ask(context.view))) return;
  // If a link is redrawn between press and release, the browser sends no click.
  if (!moved && pressed) return;
  // Do not redraw the same content.
  const looks = [JSON.stringify(context.view), shown.said, shardsThatMatter(), context.overview?.cluster_trouble, context.overview?.missing_access].join("\n");
  const same = looks === lastLooks && !moved;
  // While text is selected, nothing is redrawn, and the pause button shows this.
  const selection = getSelection();
  const marked = !same && !moved && !selection.isCollapsed && $("main").contains(selection.anchorNode);
  if (marked !== held) { held = marked; status(); }
  if (same || marked) return;
  lastLooks = looks;
  shown.node.querySelector(".waiting")?.remove();
  $("main").querySelector(".refused")?.remove();
  shown.node.hidden = false;
  shown.update(shown.answers, context);
  if (focus) shown.node.querySelector('[role="option"][aria-selected="true"]')?.focus();
}

function shardsThatMatter() {
  const all = [...context.shards.values()];
  if (shown.kind === views.shards) return JSON.stringify(all);
  return JSON.stringify([context.overview?.shards, all.map((shard) => [shard.here, shard.status, shard.owner])]);
}

const REFUSALS = { 403: "Not allowed", 404: "Not found", 429: "Too many attempts" };

function refuse(problem) {
  lastLooks = "";
  shown.node.hidden = true;
  const there = problem.owner && views.ownerLink(problem.owner);
  const notice = el("div", { class: "refused" },
    el("h1", {}, REFUSALS[problem.status] ?? "Not available"),
    el("p", {}, seen(String(problem.message ?? "The coordinator did not answer.")), "."),
    there && el("p", {}, "The owner is ", there, "."),
    el("p", {}, el("a", { href: "/" }, "All share groups")));
  $("main").querySelector(".refused")?.remove();
  $("main").append(notice);
}

// Show the token form; a token that was sent before is no longer valid.
function want(problem) {
  if (wanting && $("main").querySelector(".token")) return;
  const had = api.hasToken();
  wanting = true;
  lastLooks = "";
  api.keepToken("");
  suspend();
  asking?.abort();
  pill("bad", "token required");
  shown.node.hidden = true;
  const field = el("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const form = el("form", { class: "token", on: { submit: (event) => { event.preventDefault(); given(field.value.trim()); } } },
    el("h1", {}, "This coordinator requires a token"),
    el("p", { role: had ? "alert" : null }, had ? "The token is not valid." : "The token identifies you."),
    el("label", { for: "token" }, "Token"), field, el("button", { type: "submit" }, "Continue"),
    el("p", { class: "quiet", title: seen(String(problem.message ?? "")) }, "The token is kept in this tab until you close it."));
  $("main").querySelectorAll(".token, .refused").forEach((node) => node.remove());
  $("main").append(form);
  field.focus();
  status();
}

function given(token) {
  if (!token) return;
  api.keepToken(token);
  wanting = false;
  pill("", "…");
  $("main").querySelector(".token")?.remove();
  shown.node.hidden = false;
  requested = "";
  ask({ moved: true });
  look();
  status();
}

// Keep the data that is shown, with a notice that this data may be old.
function lost() {
  pill("bad", freshMs ? `no connection, data as of ${new Date(freshMs).toLocaleTimeString("en-GB")}` : "no connection");
  const waiting = shown.node.querySelector(".waiting");
  if (waiting) waiting.textContent = "The coordinator does not answer. Retrying every few seconds.";
}

// Updates.

// True while updates are shown; a hidden page sends no requests.
const isActive = () => !paused && !wanting && !document.hidden;

async function look() {
  suspend();
  const mine = (looking = new AbortController());
  try {
    const answers = await Promise.all(STATUS.map((path) => api.ask(path, { signal: mine.signal, lateMs: SILENT_MS })));
    if (mine.signal.aborted) return;
    const [health, shards] = answers.map(({ text }) => JSON.parse(text));
    if (answers.some(({ status }) => status === 401)) return want(shards);
    if (!shards.items) return;
    freshMs = Date.now();
    overview(health);
    shardsChanged(shards.items);
  } catch {
    if (!mine.signal.aborted) lost();
  } finally {
    if (looking === mine && isActive()) lookTimer = setTimeout(look, LOOK_EVERY_MS);
  }
}

function suspend() {
  looking?.abort();
  looking = null;
  clearTimeout(lookTimer);
}

function shardsChanged(shards) {
  let news = false;
  for (const shard of shards) {
    const before = context.shards.get(shard.state_partition);
    context.shards.set(shard.state_partition, shard);
    const moved = !before || before.end_log_offset !== shard.end_log_offset || before.status !== shard.status;
    news ||= moved && concerns(shard);
  }
  draw();
  if (news && shown.answers && shown.kind !== views.shards) later(0);
}

function concerns(shard) {
  const detail = shown.answers?.detail;
  return !detail || detail.state_partition === shard.state_partition;
}

function overview(now) {
  context.overview = now;
  $("address").textContent = now.observes ? "observer" : now.advertise;
  pill(now.status === "ready" ? "good" : "bad", now.status);
  const reasons = $("reasons");
  const said = now.reasons.join("\n");
  if (reasons.dataset.said !== said) {
    reasons.dataset.said = said;
    reasons.hidden = !said;
    refill(reasons, el("ul", {}, now.reasons.map((reason) => el("li", {}, seen(reason)))));
  }
  const role = now.observes ? `observes ${now.observes}` : `brokers connect to ${now.listen} · log: ${now.log} · ownership: ${now.ownership}`;
  $("about").textContent = `Release ${now.version} · ${role} · ` +
    `${bytes(now.live_bytes)} of state · event loop lag ${(now.event_loop_lag_seconds * 1000).toFixed(1)} ms`;
  draw();
}

function pill(kind, text) {
  const node = $("ready");
  node.className = `pill ${kind}`;
  if (node.textContent !== text) node.textContent = text;
}

function status() {
  $("forget").hidden = !api.hasToken();
  $("live").hidden = wanting;
  $("live").textContent = paused ? "▶ Resume" : held ? "❚❚ Pause (text is selected)" : "❚❚ Pause";
  $("live").title = paused ? "Updates are paused." : held ? "New data is shown when no text is selected." : "Changes are shown within two seconds.";
  $("live").setAttribute("aria-pressed", String(paused));
}

function resume() {
  if (!isActive()) return;
  look();
  ask();
}

$("live").addEventListener("click", () => {
  paused = !paused;
  if (paused) { suspend(); clearTimeout(timer); } else resume();
  status();
});
$("forget").addEventListener("click", () => { api.keepToken(""); location.reload(); });
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { suspend(); clearTimeout(timer); } else resume();
});
setInterval(() => {
  for (const node of document.querySelectorAll("time[data-ms]")) node.textContent = since(Number(node.dataset.ms));
}, 1000);

status();
arrive(read(location.search));
look();
