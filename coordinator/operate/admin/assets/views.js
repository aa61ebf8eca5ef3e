// The four views: share groups, one group, one share-partition, and shards. A view lists its API requests and fills
// its element from the responses. The content depends only on the responses and the URL.

import { hasToken } from "./api.js";
import { ago, bytes, count, duration, el, link, nameElement, pagerLinks, plural, replaceContent, escapeInvisible, unknown } from "./elements.js";
import { STATES, blockLinks, blockOf, cells, describeOffset, legend, stateStyle, stateBar, stateMark, times, windowOf } from "./offsets.js";

const PAGE = 100;
const RANGES_PAGE = 100;
const PROBLEMS = 20;
const SEVERE = ["outage", "stuck", "lost-before-delivery"];

export const query = (path, parameters) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "" && value !== false);
  return `${path}?${new URLSearchParams(given)}`;
};

export const number = (text, otherwise) => (/^\d{1,15}$/.test(text ?? "") ? Number(text) : otherwise);

// Parts shared by several views.

// Make a table of items. A column has a label, a function that makes the cell of an item, and optionally a class, the
// sort order that its header selects, and `isHeader` if its cells are the headers of the rows.
export function table(caption, columns, items, view, rowAttributes = () => null) {
  const head = columns.map((column) => el("th", {
    scope: "col", class: column.class,
    "aria-sort": column.sort && view.sort === column.sort ? (view.desc ? "descending" : "ascending") : null,
  }, column.sort ? sortLink(column, view) : column.label));
  const rows = items.map((item, place) => el("tr", rowAttributes(item), columns.map((column) =>
    el(column.isHeader ? "th" : "td", { scope: column.isHeader ? "row" : null, class: column.class }, column.cell(item, place)))));
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
function otherOwners(context) {
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

// Explain why lag, members or topic names are not known, for example because a permission is missing.
function unknownData({ overview }) {
  if (!overview) return null;
  const error = overview.cluster_error && `Lag, members and topic names are not known: ${overview.cluster_error.replace(/\.$/, "")}.`;
  const sentences = [error, ...overview.missing_access].filter(Boolean);
  return sentences.length > 0 && el("div", { class: "notice" }, sentences.map((sentence) => el("p", {}, escapeInvisible(sentence))));
}

// Link to the same view on another coordinator; `of` distinguishes several links to it.
export function ownerLink(owner, of = "") {
  if (!owner.page || !/^https?:\/\//.test(owner.page)) return el("span", {}, escapeInvisible(owner.wire));
  return el("a", { href: owner.page + "/" + location.search, "data-key": `owner ${owner.wire} ${of}` }, escapeInvisible(owner.wire));
}

export function topicName(item) {
  return item.topic === null ? el("span", { class: "id", title: "The topic name is not known." }, item.topic_id) : nameElement(item.topic);
}

const lagOf = (item, context) => (item.lag === null ? unknown(whyNoLag(item, context)) : count(item.lag));

function whyNoLag(item, context) {
  if (item.end_offset === null) return context.overview?.cluster_error ?? "The end offset is not known.";
  return item.start_offset < 0 ? "There is no start offset yet." : "The broker does not send the delivery complete count.";
}

const countOrDash = (number) => (number === null ? "–" : count(number));

const offsetOf = (offset) => (offset < 0 ? el("span", { class: "unknown", title: "The leader uses share.auto.offset.reset." }, "none yet") : String(offset));

// The views.

export const groups = {
  title: () => "Share groups",
  requests: (view) => ({
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
      replaceContent(problems, problemList(signals));
      if (document.activeElement !== find) find.value = context.view.find ?? "";
      replaceContent(figures, overviewFacts(context, page));
      replaceContent(notice, [otherOwners(context), unknownData(context)]);
      replaceContent(list, page.total ? [table("Share groups", GROUP_COLUMNS, page.items, context.view), pager(page, context.view)] : emptyList(context));
    };
    return { node, update };
  },
};

// The groups with a problem, most severe first, each with the sentence that explains it.
function problemList(signals) {
  if (!signals.total) return null;
  const items = signals.items.map((item) => el("li", {},
    problemMark(item), " ",
    link({ group: item.group }, { "data-key": `problem ${item.group}` }, nameElement(item.group)), ": ", escapeInvisible(item.message), "."));
  const more = signals.total - signals.items.length;
  return el("section", { class: "problems", "aria-label": "Problems" },
    el("h2", {}, plural(signals.total, "group"), " with a problem"),
    el("ul", {}, items), more > 0 && el("p", { class: "quiet" }, `and ${plural(more, "more group")}`,
      // A link sends no token, so the request would be refused.
      hasToken() ? "." : [": ", el("a", { href: "/api/v1/signals?only_problems=true&limit=10000" }, "all of them as JSON")]));
}

const problemMark = ({ problem }) =>
  el("span", { class: SEVERE.includes(problem) ? "problem severe" : "problem" }, problem.replaceAll("-", " "));

function groupProblem(item) {
  return el("section", { class: "problems", "aria-label": "Problem" }, el("p", {}, problemMark(item), ": ", escapeInvisible(item.message), "."));
}

function emptyList({ view, overview }) {
  return el("p", { class: "quiet" }, view.find ? "No group id contains this text." :
    overview && overview.status !== "ready" ? "No state is loaded. The reason is at the top of the page." :
    `No share group has state in this ${overview?.observes ? "cluster" : "coordinator"} yet. The first consumer of a share group creates it.`);
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

const GROUP_COLUMNS = [
  { label: "Group", sort: "group", isHeader: true, cell: (item) => link({ group: item.group }, { "data-key": `group ${item.group}` }, nameElement(item.group)) },
  { label: "Problem", sort: "problem", cell: (item) => (item.problem === "none" ? "–" : problemMark(item)) },
  { label: "Lag", sort: "lag", class: "n", cell: (item) => countOrDash(item.lag) },
  { label: "In flight", class: "n", cell: (item) => countOrDash(item.in_flight_records) },
  { label: "Share-partitions", sort: "share-partitions", class: "n", cell: (item) => count(item.share_partitions) },
  { label: "Last write", sort: "last-write", class: "n", cell: (item) => ago(item.last_write_ms, item.last_write) },
];

export const group = {
  title: (view) => escapeInvisible(view.group),
  requests: (view) => ({
    page: query("/api/v1/share-partitions", {
      group: view.group, sort: view.sort, descending: Boolean(view.desc), offset: number(view.offset, 0), limit: PAGE,
    }),
    signals: query("/api/v1/signals", { group: view.group, limit: 1 }),
  }),
  build(view) {
    const list = el("div"), notice = el("div"), problem = el("div"), figures = el("div");
    const node = el("div", {},
      el("p", { class: "crumbs" }, link({}, {}, "Share groups"), " / "), el("h1", {}, nameElement(view.group)), problem, figures, notice, list);
    const update = ({ page, signals }, context) => {
      replaceContent(problem, signals.problems ? groupProblem(signals.items[0]) : null);
      replaceContent(figures, signals.items.map(signalFacts));
      replaceContent(notice, [otherOwners(context), unknownData(context)]);
      replaceContent(list, page.total
        ? [el("p", {}, plural(page.total, "share-partition"), page.missing_shards.length ? " here" : ""),
          table("Share-partitions", sharePartitionColumns(context), page.items, context.view), pager(page, context.view)]
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
    ["Oldest incomplete record", known(item.oldest_record_age_seconds, duration), "in the share-partition with the largest lag"],
    ["Members", known(item.members, count)],
    ["Acknowledged", perSecond(item.acknowledged_per_second)],
    ["Released, rejected", `${perSecond(item.released_per_second)}, ${perSecond(item.rejected_per_second)}`],
    ["Window used", `${Math.round(item.window_usage * 100)} %`, "of the fullest share-partition"],
    ["Lost before delivery", count(item.lost_records), "since the start of this process"],
  );
}

const sharePartitionColumns = (context) => [
  // The coordinator stores topic ids without names, so it sorts by topic id.
  {
    label: context.view.sort === "key" ? "Topic-partition, by topic id" : "Topic-partition", sort: "key", isHeader: true,
    cell: (item) => link({ group: item.group, topic: item.topic_id, partition: String(item.partition) },
      { "data-key": `${item.topic_id} ${item.partition}` }, topicName(item), el("span", { class: "dash" }, "-"), String(item.partition)),
  },
  { label: "Start offset", class: "n", cell: (item) => offsetOf(item.start_offset) },
  { label: "Lag", class: "n", cell: (item) => lagOf(item, context) },
  { label: "In flight", sort: "in-flight", class: "n", cell: (item) => count(item.in_flight_records) },
  {
    label: "Delivery states", class: "bars",
    cell: (item) => (item.unreadable ? el("b", { class: "bad" }, "unreadable") : stateBar(item.records_by_state)),
  },
  { label: "Most deliveries", sort: "delivery-count", class: "n", cell: (item) => countOrDash(item.delivery_count_max || null) },
  { label: "Last write", sort: "last-write", class: "n", cell: (item) => ago(item.last_write_ms, item.last_write) },
  {
    label: "Shard", class: "n",
    cell: (item) => link({ view: "shards", shard: String(item.state_partition) },
      { "data-key": `shard of ${item.topic_id} ${item.partition}` }, String(item.state_partition)),
  },
];

export const sharePartition = {
  title: (view) => `${escapeInvisible(view.group)} · ${escapeInvisible(`${view.topic}-${view.partition}`)}`,
  requests: (view) => ({
    // Request only what is drawn, because the number of offset ranges is not limited.
    detail: query("/api/v1/share-partition", {
      group: view.group, topic: view.topic, partition: view.partition, limit: RANGES_PAGE, offset: number(view.run, 0),
      from_offset: blockOf(number(view.at, 0)),
    }),
  }),
  build(view, go) {
    const heading = el("h1"), figures = el("div"), readout = el("p", { class: "readout", "aria-live": "polite" });
    const strip = el("section", { "aria-label": "Window" }), lists = el("div", { class: "lists" });
    const node = el("div", {},
      el("p", { class: "crumbs" }, link({}, {}, "Share groups"), " / ", link({ group: view.group }, {}, nameElement(view.group)), " / "),
      heading, figures, strip, lists);
    const update = ({ detail }, context) => {
      replaceContent(heading, topicName(detail), el("span", { class: "dash" }, "-"), String(detail.partition));
      replaceContent(figures, detail.unreadable
        && el("p", { class: "notice bad" }, `This state cannot be served: ${escapeInvisible(detail.unreadable)}.`), windowFacts(detail, context));
      const { first, last } = windowOf(detail);
      const chosen = number(context.view.at, first);
      const block = blockOf(chosen);
      replaceContent(readout, describeOffset(detail, chosen));
      replaceContent(strip, el("h2", {}, "Window"), legend(detail),
        cells(detail, block, chosen, go), readout, historyLinks(detail, chosen), blockLinks(detail, block, { ...context.view, run: undefined }), recordsAfterWindow(detail, last));
      replaceContent(lists, el("div", {}, mostDelivered(detail, context.view), epochFacts(detail, context)), allRanges(detail, context.view));
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
  const oldest = detail.oldest_incomplete;
  return facts(
    ["Start offset", offsetOf(detail.start_offset), "all records below it are complete"],
    ["In flight", count(detail.in_flight_records), detail.state_batches ? `in ${plural(detail.state_batches, "offset range")}` : null],
    ["Lag", lagOf(detail, context), detail.end_offset === null ? null : `end offset ${detail.end_offset}`],
    ["Oldest incomplete record", oldest
      ? link({ ...context.view, at: String(oldest.offset) }, { "data-key": "oldest" }, String(oldest.offset)) : "none",
      oldest ? `${stateStyle(oldest.delivery_state).said}${oldest.delivery_count ? `, delivered ${times(oldest.delivery_count)}` : ""}` : null],
    ["Last write", ago(detail.last_write_ms, detail.last_write)],
  );
}

function recordsAfterWindow(detail, last) {
  if (detail.end_offset === null || detail.end_offset <= last + 1) return null;
  return el("p", { class: "quiet" },
    `After the window, up to the end offset ${detail.end_offset}: ${plural(detail.end_offset - last - 1, "record")} without stored state, not delivered yet or in their first delivery.`);
}

const rangeColumns = (view) => [
  {
    label: "First offset", class: "n",
    cell: (range) => link({ ...view, at: String(range.first_offset) }, { "data-key": `run ${range.first_offset}` }, String(range.first_offset)),
  },
  { label: "Last offset", class: "n", cell: (range) => String(range.last_offset) },
  { label: "Records", class: "n", cell: (range) => count(range.records) },
  {
    label: "Delivery state",
    cell: (range) => [stateMark(range.delivery_state), range.delivery_state in STATES && range.delivery_state !== "UNKNOWN" ? null : ` (${range.delivery_state_number})`],
  },
  { label: "Deliveries", class: "n", cell: (range) => count(range.delivery_count) },
];

function mostDelivered(detail, view) {
  if (!detail.most_delivered.length) return null;
  return rangeTable("Most often delivered", detail.most_delivered, view);
}

function allRanges(detail, view) {
  const page = detail.in_flight;
  return page.total ? rangeTable("All offset ranges", page.items, view, pager(page, view, "run")) : null;
}

function rangeTable(title, ranges, view, ...more) {
  return el("section", {}, el("h2", {}, title), table(title, rangeColumns(view), ranges, {}), ...more);
}

function epochFacts(detail, context) {
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
  requests: () => ({}),
  build() {
    const figures = el("div"), list = el("div");
    const node = el("div", {}, el("h1", {}, "Shards"),
      el("p", { class: "quiet" }, "Each share-partition belongs to one shard. A shard has its own log and one owner."), figures, list);
    const update = (_, context) => {
      const all = [...context.shards.values()].sort((a, b) => a.state_partition - b.state_partition);
      replaceContent(figures, shardCounts(all));
      replaceContent(list, all.length
        ? table("Shards", SHARD_COLUMNS, all, context.view, shardRow(context))
        : el("p", { class: "quiet" }, "No shard is known yet."));
    };
    return { node, update };
  },
};

const shardStatus = (shard) => (shard.status === "CLOSED" && !shard.here ? "elsewhere" : shard.status.toLowerCase());

// The number of shards in each status.
function shardCounts(all) {
  const counts = new Map();
  for (const shard of all) counts.set(shardStatus(shard), (counts.get(shardStatus(shard)) ?? 0) + 1);
  return el("p", { class: "legend" }, [...counts].map(([status, n]) => el("span", {}, el("b", {}, String(n)), ` ${status} `)));
}

// Figures of a loaded shard.
const SHARD_FIGURES = [
  ["Owner epoch", (shard) => String(shard.owner_epoch)], ["Share-partitions", (shard) => count(shard.share_partitions)],
  ["State batches", (shard) => count(shard.state_batches)], ["Live bytes", (shard) => bytes(shard.live_bytes)],
  ["Log records", (shard) => count(shard.log_records)], ["Prune lag", (shard) => count(shard.prune_lag)],
  ["Load time", (shard) => `${count(shard.load_ms)} ms`],
];

const SHARD_COLUMNS = [
  { label: "Shard", class: "n", isHeader: true, cell: (shard) => String(shard.state_partition) },
  {
    label: "Status",
    cell: (shard) => [el("span", { class: `status t-${shardStatus(shard)}` }, shardStatus(shard)), shard.failure ? el("div", { class: "bad" }, escapeInvisible(shard.failure)) : null],
  },
  {
    label: "Owner", class: "whole",
    cell: (shard) => (shard.here ? "this coordinator" : shard.owner ? ownerLink(shard.owner, shard.state_partition) : "no known owner"),
  },
  ...SHARD_FIGURES.map(([label, format]) => ({
    label, class: "n", cell: (shard) => (shard.status === "CLOSED" ? el("span", { class: "quiet" }, "–") : format(shard)),
  })),
];

const shardRow = (context) => (shard) =>
  ({ class: String(shard.state_partition) === context.view.shard ? "chosen" : null, id: `shard-${shard.state_partition}` });
