// The four views: share groups, one group, one share-partition, and shards. A view lists its API requests and fills
// its element from the responses. The content depends only on the responses and the URL.

import { hasToken } from "./api.js";
import { ago, bytes, count, duration, el, link, named, pagerLinks, plural, refill, seen, unknown } from "./elements.js";
import { STATES, blockLinks, blockOf, cells, described, legend, look, stateBar, stateMark, times, windowOf } from "./offsets.js";

const PAGE = 100;
const RUNS_PAGE = 100;
const PROBLEMS = 20;
const SEVERE = ["outage", "stuck", "lost-before-delivery"];

export const query = (path, parameters) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "" && value !== false);
  return `${path}?${new URLSearchParams(given)}`;
};

export const number = (text, otherwise) => (/^\d{1,15}$/.test(text ?? "") ? Number(text) : otherwise);

// Parts shared by several views.

export function table(caption, columns, rows, view) {
  const head = columns.map((column) => el("th", {
    scope: "col", class: column.class,
    "aria-sort": column.sort && view.sort === column.sort ? (view.desc ? "descending" : "ascending") : null,
  }, column.sort ? sortLink(column, view) : column.label));
  return el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: 0, "data-key": caption },
    el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

function sortLink(column, view) {
  const now = view.sort === column.sort;
  // Numbers and severities are sorted in descending order first, names in ascending order.
  const desc = now ? !view.desc : column.class === "n" || column.sort === "problem";
  const arrow = now ? (view.desc ? " ↓" : " ↑") : "";
  return link({ ...view, sort: column.sort, desc: desc ? 1 : "", offset: "" }, { "data-key": `sort ${column.sort}` }, column.label + arrow);
}

// Links to the other parts of a list; `parameter` of the query string is the offset of the part.
function pager(page, view, parameter = "offset") {
  if (page.total <= page.limit && page.offset === 0) return null;
  const last = Math.floor(Math.max(0, page.total - 1) / page.limit) * page.limit;
  // A link may point after the end of a list that was longer before.
  const part = page.items.length ? `${count(page.offset + 1)}–${count(page.offset + page.items.length)}` : "none";
  return pagerLinks("Pages", view, [
    ["« first", "", page.offset > 0],
    ["‹ previous", Math.min(last, Math.max(0, page.offset - page.limit)) || "", page.offset > 0],
    `${part} of ${count(page.total)}`,
    ["next ›", page.offset + page.limit, page.offset + page.limit < page.total],
    ["last »", last, page.offset < last],
  ], parameter);
}

function facts(...pairs) {
  return el("dl", { class: "facts" }, pairs.filter(Boolean).map(([label, value, note]) =>
    el("div", {}, el("dt", {}, label), el("dd", {}, value), note && el("dd", { class: "note" }, note))));
}

// List the owners of the shards that this coordinator does not own.
function elsewhere(context) {
  const shards = [...context.shards.values()];
  const away = shards.filter((shard) => !shard.here);
  if (!shards.length || !away.length) return null;
  const owners = new Map();
  for (const shard of away) {
    const key = shard.owner ? shard.owner.wire : "";
    owners.set(key, { owner: shard.owner, shards: (owners.get(key)?.shards ?? 0) + 1 });
  }
  const items = [...owners].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, { owner, shards: number }]) => el("li", {},
    owner ? ownerLink(owner) : "no known owner", `: ${plural(number, "shard")}`));
  return el("div", { class: "notice" },
    el("p", {}, `${away.length} of ${plural(shards.length, "shard")} are not owned by this coordinator, and their state is not in this list. Owners:`),
    el("ul", {}, items));
}

// List what the cluster does not tell this process, and the permission that is missing.
function missingAccess({ overview }) {
  if (!overview?.missing_access.length) return null;
  return el("div", { class: "notice" }, overview.missing_access.map((sentence) => el("p", {}, seen(sentence))));
}

// Link to the same view on another coordinator; `of` distinguishes several links to it.
export function ownerLink(owner, of = "") {
  if (!owner.page || !/^https?:\/\//.test(owner.page)) return el("span", {}, seen(owner.wire));
  return el("a", { href: owner.page + "/" + location.search, "data-key": `owner ${owner.wire} ${of}` }, seen(owner.wire));
}

export function topicName(item) {
  return item.topic === null ? el("span", { class: "id", title: "The topic name is not known." }, item.topic_id) : named(item.topic);
}

const lagOf = (item, context) => (item.lag === null ? unknown(whyNoLag(item, context)) : count(item.lag));

function whyNoLag(item, context) {
  if (item.end_offset === null) return context.overview?.cluster_trouble ?? "The end offset is not known.";
  return item.start_offset < 0 ? "There is no start offset yet." : "The broker does not send the delivery complete count.";
}

const offsetOf = (offset) => (offset < 0 ? el("span", { class: "unknown", title: "The leader uses share.auto.offset.reset." }, "none yet") : String(offset));

// The views.

export const groups = {
  title: () => "Share groups",
  ask: (view) => ({
    page: query("/api/v1/groups", {
      contains: view.find, sort: view.sort, descending: Boolean(view.desc), offset: number(view.offset, 0), limit: PAGE,
    }),
    signals: query("/api/v1/signals", { only_problems: true, limit: PROBLEMS }),
  }),
  build(view, go) {
    const find = el("input", {
      type: "search", id: "find", placeholder: "part of a group id", value: view.find ?? "", autocomplete: "off", spellcheck: "false",
      on: { input: () => go({ find: find.value, offset: "" }, { replace: true }) },
    });
    const figures = el("div"), problems = el("div"), list = el("div"), notice = el("div");
    const node = el("div", {}, el("h1", {}, "Share groups"), problems, figures, notice,
      el("p", { class: "tools" }, el("label", { for: "find" }, "Find "), find), list);
    const update = ({ page, signals }, context) => {
      refill(problems, problemList(signals));
      if (document.activeElement !== find) find.value = context.view.find ?? "";
      refill(figures, overviewFacts(context, page));
      refill(notice, [elsewhere(context), missingAccess(context)]);
      refill(list, page.total ? [groupTable(page, context.view), pager(page, context.view)] : nothing(context.view));
    };
    return { node, update };
  },
};

// The groups with a problem, most severe first, each with the sentence that explains it.
function problemList(signals) {
  if (!signals.total) return null;
  const items = signals.items.map((item) => el("li", {},
    problemMark(item), " ",
    link({ group: item.group }, { "data-key": `problem ${item.group}` }, named(item.group)), ": ", seen(item.message), "."));
  const more = signals.total - signals.items.length;
  return el("section", { class: "problems", "aria-label": "Problems" },
    el("h2", {}, plural(signals.total, "group"), " with a problem"),
    el("ul", {}, items), more > 0 && el("p", { class: "quiet" }, `and ${plural(more, "more group")}: `,
      el("a", { href: "/api/v1/signals?only_problems=true&limit=10000" }, "all of them as JSON")));
}

const problemMark = ({ problem }) =>
  el("span", { class: SEVERE.includes(problem) ? "problem severe" : "problem" }, problem.replaceAll("-", " "));

function problemOf(item) {
  return el("section", { class: "problems", "aria-label": "Problem" }, el("p", {}, problemMark(item), ": ", seen(item.message), "."));
}

function nothing(view) {
  return el("p", { class: "quiet" }, view.find ? "No group id contains this text." :
    "No share group has state in this coordinator yet. The first consumer of a share group creates it.");
}

function overviewFacts({ overview, view }, page) {
  if (!overview) return null;
  const shards = Object.values(overview.shards).reduce((sum, number) => sum + number, 0);
  return facts(
    [view.find ? "Groups found" : "Groups", count(page.total)],
    ["Share-partitions", count(overview.share_partitions)],
    ["State batches", count(overview.state_batches), "offset ranges in flight"],
    ["Shards active", `${overview.shards.ACTIVE ?? 0} of ${shards}`],
    ["State in the log", bytes(overview.live_bytes), overview.observes ? "of Kafka" : overview.log],
  );
}

function groupTable(page, view) {
  const rows = page.items.map((item) => el("tr", {},
    el("th", { scope: "row" }, link({ group: item.group }, { "data-key": `group ${item.group}` }, named(item.group))),
    el("td", {}, item.problem === "none" ? "–" : problemMark(item)),
    el("td", { class: "n" }, item.lag === null ? "–" : count(item.lag)),
    el("td", { class: "n" }, item.in_flight_records === null ? "–" : count(item.in_flight_records)),
    el("td", { class: "n" }, count(item.share_partitions)),
    el("td", { class: "n" }, ago(item.last_write_ms, item.last_write))));
  return table("Share groups", [
    { label: "Group", sort: "group" }, { label: "Problem", sort: "problem" },
    { label: "Lag", sort: "lag", class: "n" }, { label: "In flight", class: "n" },
    { label: "Share-partitions", sort: "share-partitions", class: "n" },
    { label: "Last write", sort: "last-write", class: "n" },
  ], rows, view);
}

export const group = {
  title: (view) => seen(view.group),
  ask: (view) => ({
    page: query("/api/v1/share-partitions", {
      group: view.group, sort: view.sort, descending: Boolean(view.desc), offset: number(view.offset, 0), limit: PAGE,
    }),
    signals: query("/api/v1/signals", { group: view.group, limit: 1 }),
  }),
  build(view) {
    const list = el("div"), notice = el("div"), problem = el("div"), figures = el("div");
    const node = el("div", {},
      el("p", { class: "crumbs" }, link({}, {}, "Share groups"), " / "), el("h1", {}, named(view.group)), problem, figures, notice, list);
    const update = ({ page, signals }, context) => {
      refill(problem, signals.problems ? problemOf(signals.items[0]) : null);
      refill(figures, signals.items.map(signalFacts));
      refill(notice, [elsewhere(context), missingAccess(context)]);
      refill(list, page.total
        ? [el("p", {}, plural(page.total, "share-partition"), page.missing_shards.length ? " here" : ""),
          sharePartitionTable(page, context), pager(page, context.view)]
        : el("p", { class: "quiet" }, "This group has no state in this coordinator."));
    };
    return { node, update };
  },
};

// The figures of a group; null means unknown.
function signalFacts(item) {
  const known = (value, text) => (value === null ? "not known" : text(value));
  const perSecond = (value) => known(value, (rate) => `${rate < 10 ? rate.toFixed(1) : count(Math.round(rate))}/s`);
  return facts(
    ["Lag", known(item.lag, count), plural(item.share_partitions, "share-partition")],
    ["Oldest unfinished record", known(item.oldest_record_age_seconds, duration), "in the share-partition with the largest lag"],
    ["Members", known(item.members, count)],
    ["Acknowledged", perSecond(item.acknowledged_per_second)],
    ["Released, rejected", `${perSecond(item.released_per_second)}, ${perSecond(item.rejected_per_second)}`],
    ["Window used", `${Math.round(item.window_usage * 100)} %`, "of the fullest share-partition"],
    ["Lost before delivery", count(item.lost_records), "since the start of this process"],
  );
}

function sharePartitionTable(page, context) {
  const rows = page.items.map((item) => el("tr", {},
    el("th", { scope: "row" }, link({ group: item.group, topic: item.topic_id, partition: String(item.partition) },
      { "data-key": `${item.topic_id} ${item.partition}` }, topicName(item), el("span", { class: "dash" }, "-"), String(item.partition))),
    el("td", { class: "n" }, offsetOf(item.start_offset)),
    el("td", { class: "n" }, lagOf(item, context)),
    el("td", { class: "n" }, count(item.in_flight_records)),
    el("td", { class: "bars" }, item.unreadable ? el("b", { class: "bad" }, "unreadable") : stateBar(item.records_by_state)),
    el("td", { class: "n" }, item.delivery_count_max ? count(item.delivery_count_max) : "–"),
    el("td", { class: "n" }, ago(item.last_write_ms, item.last_write)),
    el("td", { class: "n" }, link({ view: "shards", shard: String(item.state_partition) },
      { "data-key": `shard of ${item.topic_id} ${item.partition}` }, String(item.state_partition)))));
  return table("Share-partitions", [
    // The coordinator stores topic ids without names, so it sorts by the ids.
    { label: context.view.sort === "key" ? "Topic-partition, by topic id" : "Topic-partition", sort: "key" }, { label: "Start offset", class: "n" }, { label: "Lag", class: "n" },
    { label: "In flight", sort: "in-flight", class: "n" }, { label: "Delivery states" },
    { label: "Most deliveries", sort: "delivery-count", class: "n" },
    { label: "Last write", sort: "last-write", class: "n" }, { label: "Shard", class: "n" },
  ], rows, context.view);
}

export const sharePartition = {
  title: (view) => `${seen(view.group)} · ${view.topic}-${view.partition}`,
  ask: (view) => ({
    // Request only what is drawn, because the number of offset ranges is not limited.
    detail: query("/api/v1/share-partition", {
      group: view.group, topic: view.topic, partition: view.partition, limit: RUNS_PAGE, offset: number(view.run, 0),
      from_offset: blockOf(number(view.at, 0)),
    }),
  }),
  build(view, go) {
    const heading = el("h1"), figures = el("div"), readout = el("p", { class: "readout", "aria-live": "polite" });
    const strip = el("section", { "aria-label": "Window" }), lists = el("div", { class: "lists" });
    const node = el("div", {},
      el("p", { class: "crumbs" }, link({}, {}, "Share groups"), " / ", link({ group: view.group }, {}, named(view.group)), " / "),
      heading, figures, strip, lists);
    const update = ({ detail }, context) => {
      refill(heading, topicName(detail), el("span", { class: "dash" }, "-"), String(detail.partition));
      refill(figures, detail.unreadable
        && el("p", { class: "notice bad" }, `This state cannot be served: ${seen(detail.unreadable)}.`), windowFacts(detail, context));
      const { first, last } = windowOf(detail);
      const chosen = number(context.view.at, first);
      const block = blockOf(chosen);
      refill(readout, described(detail, chosen));
      refill(strip, el("h2", {}, "Window"), legend(detail),
        cells(detail, block, chosen, go), readout, historyLinks(detail, chosen), blockLinks(detail, block, { ...context.view, run: undefined }), behind(detail, last));
      refill(lists, el("div", {}, mostDelivered(detail, context.view), more(detail, context)), runs(detail, context.view));
    };
    return { node, update };
  },
};

function historyLinks({ group, topic_id: topic, partition }, chosen) {
  const view = { view: "history", group, topic, partition: String(partition) };
  return el("p", {}, "Delivery history: ",
    link({ ...view, at: String(chosen) }, { "data-key": "history of record" }, `record ${chosen}`), " · ",
    link(view, { "data-key": "history" }, "share-partition"));
}

function windowFacts(detail, context) {
  const oldest = detail.oldest_unfinished;
  return facts(
    ["Start offset", offsetOf(detail.start_offset), "all records below it are complete"],
    ["In flight", count(detail.in_flight_records), detail.state_batches ? `in ${plural(detail.state_batches, "offset range")}` : null],
    ["Lag", lagOf(detail, context), detail.end_offset === null ? null : `end offset ${detail.end_offset}`],
    ["Oldest incomplete record", oldest
      ? link({ ...context.view, at: String(oldest.offset) }, { "data-key": "oldest" }, String(oldest.offset)) : "none",
      oldest ? `${look(oldest.delivery_state).said}${oldest.delivery_count ? `, delivered ${times(oldest.delivery_count)}` : ""}` : null],
    ["Last write", ago(detail.last_write_ms, detail.last_write)],
  );
}

function behind(detail, last) {
  if (detail.end_offset === null || detail.end_offset <= last + 1) return null;
  return el("p", { class: "quiet" },
    `After the window, up to the end offset ${detail.end_offset}: ${plural(detail.end_offset - last - 1, "record")} without stored state, not delivered yet or in their first delivery.`);
}

function runRow(run, view) {
  return el("tr", {},
    el("td", { class: "n" }, link({ ...view, at: String(run.first_offset) }, { "data-key": `run ${run.first_offset}` }, String(run.first_offset))),
    el("td", { class: "n" }, String(run.last_offset)),
    el("td", { class: "n" }, count(run.records)),
    el("td", {}, stateMark(run.delivery_state), run.delivery_state in STATES && run.delivery_state !== "UNKNOWN" ? null : ` (${run.delivery_state_number})`),
    el("td", { class: "n" }, count(run.delivery_count)));
}

const RUN_COLUMNS = [
  { label: "First offset", class: "n" }, { label: "Last offset", class: "n" }, { label: "Records", class: "n" },
  { label: "Delivery state" }, { label: "Deliveries", class: "n" },
];

function mostDelivered(detail, view) {
  if (!detail.most_delivered.length) return null;
  return el("section", {}, el("h2", {}, "Most often delivered"),
    table("Most often delivered", RUN_COLUMNS, detail.most_delivered.map((run) => runRow(run, view)), {}));
}

function runs(detail, view) {
  const page = detail.in_flight;
  if (!page.total) return null;
  return el("section", {}, el("h2", {}, "All offset ranges"), table("All offset ranges", RUN_COLUMNS, page.items.map((run) => runRow(run, view)), {}), pager(page, view, "run"));
}

function more(detail, context) {
  const shard = context.shards.get(detail.state_partition);
  const api = `/api/v1/share-partition?${new URLSearchParams({ group: detail.group, topic: detail.topic_id, partition: detail.partition })}`;
  return el("section", {}, el("h2", {}, "Epochs and snapshots"), facts(
    ["State epoch", String(detail.state_epoch), "of the group coordinator"],
    ["Leader epoch", String(detail.leader_epoch), `maximum: ${detail.leader_epoch_max}`],
    ["Deliveries complete", detail.delivery_complete_count < 0 ? unknown("The broker did not send it.") : count(detail.delivery_complete_count), "in the window"],
    ["Snapshots", count(detail.snapshot_epoch + 1), `${plural(detail.updates_since_snapshot, "update")} since the last`],
    ["Shard", link({ view: "shards", shard: String(detail.state_partition) }, { "data-key": "shard" }, String(detail.state_partition)), shard ? shard.status.toLowerCase() : null],
    ["Topic id", el("span", { class: "id" }, detail.topic_id), detail.topic_uuid],
  // A link sends no token, so the request would be refused.
  ), hasToken() ? null : el("p", {}, el("a", { href: api, "data-key": "json" }, "View as JSON")));
}

export const shards = {
  title: () => "Shards",
  ask: () => ({}),
  build() {
    const figures = el("div"), list = el("div");
    const node = el("div", {}, el("h1", {}, "Shards"),
      el("p", { class: "quiet" }, "Each share-partition belongs to one shard. A shard has its own log and one owner."), figures, list);
    const update = (_, context) => {
      const all = [...context.shards.values()].sort((a, b) => a.state_partition - b.state_partition);
      refill(figures, shardCounts(all));
      refill(list, shardTable(all, context));
    };
    return { node, update };
  },
};

const standing = (shard) => (shard.status === "CLOSED" && !shard.here ? "elsewhere" : shard.status.toLowerCase());

// The number of shards in each status.
function shardCounts(all) {
  const counts = new Map();
  for (const shard of all) counts.set(standing(shard), (counts.get(standing(shard)) ?? 0) + 1);
  return el("p", { class: "legend" }, [...counts].map(([status, n]) => el("span", {}, el("b", {}, String(n)), ` ${status} `)));
}

function shardTable(all, context) {
  const rows = all.map((shard) => el("tr", { class: String(shard.state_partition) === context.view.shard ? "chosen" : null, id: `shard-${shard.state_partition}` },
    el("th", { scope: "row", class: "n" }, String(shard.state_partition)),
    el("td", {}, el("span", { class: `status t-${standing(shard)}` }, standing(shard)), shard.failure ? el("div", { class: "bad" }, seen(shard.failure)) : null),
    el("td", { class: "whole" }, shard.here ? "this coordinator" : shard.owner ? ownerLink(shard.owner, shard.state_partition) : "no known owner"),
    ...(shard.status === "CLOSED"
      ? Array.from({ length: 7 }, () => el("td", { class: "n quiet" }, "–"))
      : [shard.owner_epoch, count(shard.share_partitions), count(shard.state_batches), bytes(shard.live_bytes),
        count(shard.log_records), count(shard.prune_lag), `${count(shard.load_ms)} ms`].map((shown) => el("td", { class: "n" }, String(shown))))));
  return table("Shards", [
    { label: "Shard", class: "n" }, { label: "Status" }, { label: "Owner" }, { label: "Owner epoch", class: "n" },
    { label: "Share-partitions", class: "n" }, { label: "State batches", class: "n" }, { label: "Live bytes", class: "n" },
    { label: "Log records", class: "n" }, { label: "Prune lag", class: "n" }, { label: "Load time", class: "n" },
  ], rows, context.view);
}
