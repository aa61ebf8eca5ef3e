// The page as a whole: the address says which view, the API what is in it, server-sent events when to ask again.

import * as api from "./api.js";
import { address, bytes, el, refill, seen, since } from "./elements.js";
import * as views from "./views.js";

// What does not come with an event, lag above all, is asked for as often as this.
const ASK_EVERY_MS = 5000;
// A list over much state takes its time: nobody asks for it more than a fifth of the time.
const ASK_SHARE = 5;
const ASK_AT_LEAST_MS = 1000;

const $ = (id) => document.getElementById(id);

const context = { view: {}, overview: null, shards: new Map() };
let shown = null;          // the view, its element and what updates it
let paused = false;
let events = null;         // what tells us of changes while we watch
let wanting = false;       // a token, before anything can be asked
let asking = null;         // the AbortController of the question under way
let missed = false;        // there was news meanwhile
let askedAt = 0;
let tookMs = 0;
let timer = 0;
let lastLooks = "";         // what was drawn last
let questions = "";         // what was asked last
let held = false;           // something new is not drawn, as text is selected
let pressed = false;        // a mouse button or a finger is down

// Where we are.

function read(search) {
  return Object.fromEntries(new URLSearchParams(search));
}

function chosen(view) {
  if (view.group !== undefined && view.topic !== undefined && view.partition !== undefined) return views.sharePartition;
  if (view.group !== undefined) return views.group;
  return view.view === "shards" ? views.shards : views.groups;
}

// What makes it another page rather than another part of the same one.
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
    built.node.prepend(el("p", { class: "quiet waiting" }, "Asking…"));
    scrollTo(0, 0);
  }
  shown.view = view;
  document.title = `${kind.title(view)} · Share coordinator`;
  for (const [id, here] of [["to-groups", kind !== views.shards], ["to-shards", kind === views.shards]]) {
    if (here) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  if (wanting) return want({});
  // A move within what is here already needs no answer.
  if (same && shown.answers && JSON.stringify(kind.ask(view)) === questions) draw({ moved: true, focus });
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
  // The click comes first.
  addEventListener(over, () => setTimeout(() => { pressed = false; draw(); }));
}
document.addEventListener("selectionchange", () => { if (held && getSelection().isCollapsed) draw(); });
addEventListener("popstate", () => arrive(read(location.search)));

// What is there.

async function ask(how = {}) {
  clearTimeout(timer);
  asking?.abort();
  const mine = (asking = new AbortController());
  missed = false;
  const asked = shown.kind.ask(context.view);
  questions = JSON.stringify(asked);
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
    Object.assign(shown, { answers, said, asked: questions });
    draw(how);
  } catch (error) {
    if (error.name !== "AbortError") lost();
  } finally {
    if (asking === mine) { asking = null; later(missed ? 0 : ASK_EVERY_MS); }
  }
}

// Ask again soon, but not too often; a question that takes long is not given up for the next one.
function later(ms) {
  if (paused || wanting || document.hidden) return;
  clearTimeout(timer);
  const rest = Math.max(ASK_AT_LEAST_MS, tookMs * ASK_SHARE) - (performance.now() - askedAt);
  timer = setTimeout(() => { if (asking) missed = true; else ask(); }, Math.max(ms, rest, 0));
}

// Show the answers; `moved` says that the reader went somewhere, `focus` that the chosen offset gets the focus.
function draw({ moved = false, focus = false } = {}) {
  if (!shown.answers || (shown.kind === views.shards && !context.shards.size)) return;
  // The answer for where the reader went may be on its way: what is here says nothing of it.
  if (shown.asked !== JSON.stringify(shown.kind.ask(context.view))) return;
  // A link that is drawn anew between press and release is not clicked.
  if (!moved && pressed) return;
  // Nothing is drawn anew that would look the same.
  const looks = [JSON.stringify(context.view), shown.said, shardsThatMatter(), context.overview?.cluster_trouble].join("\n");
  const same = looks === lastLooks && !moved;
  // Text that somebody is marking stays, and it is said that it does.
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
    el("h1", {}, REFUSALS[problem.status] ?? "Not here"),
    el("p", {}, seen(String(problem.message ?? "There was no answer.")), "."),
    there && el("p", {}, "It should be with ", there, "."),
    el("p", {}, el("a", { href: "/" }, "All share groups")));
  $("main").querySelector(".refused")?.remove();
  $("main").append(notice);
}

// Ask for a token; the one that we had, if we had one, is not good any more.
function want(problem) {
  if (wanting && $("main").querySelector(".token")) return;
  const had = api.hasToken();
  wanting = true;
  lastLooks = "";
  api.keepToken("");
  unwatch();
  asking?.abort();
  pill("bad", "token needed");
  shown.node.hidden = true;
  const field = el("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const form = el("form", { class: "token", on: { submit: (event) => { event.preventDefault(); given(field.value.trim()); } } },
    el("h1", {}, "This coordinator asks for a token"),
    el("p", { role: had ? "alert" : null }, had ? "The token is not known there." : "It knows by it who looks."),
    el("label", { for: "token" }, "Token"), field, el("button", { type: "submit" }, "Go on"),
    el("p", { class: "quiet", title: seen(String(problem.message ?? "")) }, "It stays in this tab until that is closed."));
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
  questions = "";
  ask({ moved: true });
  watch();
  status();
}

// What was seen stays, and it is said that it may be old.
function lost() {
  pill("bad", "no connection");
  const waiting = shown.node.querySelector(".waiting");
  if (waiting) waiting.textContent = "There is no answer. It is asked for again every few seconds.";
}

// What is new.

function watch() {
  if (events || paused || wanting || document.hidden) return;
  const mine = (events = api.watch({
    opened: status,
    lost: (gone) => {
      status();
      if (gone) lost();
    },
    event: (name, data) => ({ overview, shards: shardsChanged })[name]?.(data),
    refused: async (response) => {
      if (events !== mine) return;
      if (response.status === 401) {
        const problem = await response.json();
        // Somebody may have given a token meanwhile, and with that one we watch anew.
        if (events === mine) want(problem);
        return;
      }
      events = null;
      // There are too many who watch: we ask meanwhile.
      setTimeout(watch, ASK_EVERY_MS);
      askAbout();
      status();
    },
  }));
}

async function askAbout() {
  try {
    const [health, page] = await Promise.all(["/healthz", "/api/v1/shards?limit=10000"].map(async (path) => JSON.parse((await api.ask(path)).text)));
    if (!page.items) return;
    overview(health);
    shardsChanged(page.items);
  } catch { lost(); }
}

function unwatch() {
  events?.close();
  events = null;
  clearTimeout(timer);
}

function shardsChanged(changed) {
  let news = false;
  for (const shard of changed) {
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
  $("address").textContent = now.advertise;
  pill(now.status === "ready" ? "good" : "bad", now.status);
  const reasons = $("reasons");
  const said = now.reasons.join("\n");
  if (reasons.dataset.said !== said) {
    reasons.dataset.said = said;
    reasons.hidden = !said;
    refill(reasons, el("ul", {}, now.reasons.map((reason) => el("li", {}, seen(reason)))));
  }
  $("about").textContent = `Release ${now.version} · brokers connect to ${now.listen} · log: ${now.log} · ownership: ${now.ownership} · ` +
    `${bytes(now.live_bytes)} of state · event loop ${(now.event_loop_lag_seconds * 1000).toFixed(1)} ms late`;
  draw();
}

function pill(kind, text) {
  const node = $("ready");
  node.className = `pill ${kind}`;
  if (node.textContent !== text) node.textContent = text;
}

function status() {
  const live = events?.open;
  $("forget").hidden = !api.hasToken();
  $("live").hidden = wanting;
  $("live").textContent = paused ? "▶ Resume" : held ? "❚❚ Pause (text is selected)" : live ? "❚❚ Pause" : "❚❚ Pause (polling)";
  $("live").title = paused ? "Nothing is asked for." : held ? "There is news; it is drawn when no text is selected." : live ? "Live: what changes is shown within a second." : "Asked for every few seconds.";
  $("live").setAttribute("aria-pressed", String(paused));
}

$("live").addEventListener("click", () => {
  paused = !paused;
  if (paused) unwatch();
  else { watch(); ask(); }
  status();
});
$("forget").addEventListener("click", () => { api.keepToken(""); location.reload(); });
// A page that nobody sees takes no connection: browsers have six for each server.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) unwatch();
  else if (!paused) { watch(); ask(); }
});
setInterval(() => {
  for (const node of document.querySelectorAll("time[data-ms]")) node.textContent = since(Number(node.dataset.ms));
}, 1000);

status();
arrive(read(location.search));
watch();
