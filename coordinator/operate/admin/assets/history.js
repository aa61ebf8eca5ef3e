// The view of the delivery history: what the state log contains about a share-partition or about one record.

import { count, el, link, nameElement, pagerLinks, plural, replaceContent, escapeInvisible } from "./elements.js";
import { stateMark } from "./offsets.js";
import { number, query, table, topicName } from "./views.js";

const PAGE = 100;

export const deliveryHistory = {
  // Each request reads the log, so the view is not refreshed.
  once: true,
  title: (view) => `Delivery history · ${escapeInvisible(view.group)} · ${escapeInvisible(`${view.topic}-${view.partition}`)}`,
  requests: (view) => ({
    found: query("/api/v1/delivery-history", {
      group: view.group, topic: view.topic, partition: view.partition,
      record_offset: number(view.at), before: number(view.before), limit: PAGE,
    }),
  }),
  build(view) {
    const whole = { group: view.group, topic: view.topic, partition: view.partition };
    const heading = el("h1"), back = el("span"), body = el("div");
    const node = el("div", {},
      el("p", { class: "crumbs" }, link({}, {}, "Share groups"), " / ", link({ group: view.group }, {}, nameElement(view.group)), " / ", back),
      heading, body);
    const update = ({ found }, context) => {
      const at = found.record_offset;
      replaceContent(back, link({ ...whole, at: at === null ? undefined : String(at) }, { "data-key": "window" },
        topicName(found), el("span", { class: "dash" }, "-"), String(found.partition)), " / ");
      replaceContent(heading, at === null ? "Delivery history" : `Delivery history of record ${at}`);
      replaceContent(body,
        el("p", {}, el("b", {}, "Now: "), escapeInvisible(found.summary), "."),
        at !== null && el("p", {}, link({ ...whole, view: "history" }, { "data-key": "all" }, "History of the whole share-partition")),
        found.pruned && el("p", { class: "notice" }, "Incomplete: ", escapeInvisible(found.pruned), "."),
        found.events.length ? eventTable(found, context) : el("p", { class: "quiet" }, "The log has no event of this record."),
        pager(found, context.view),
        el("p", { class: "quiet" },
          `From ${plural(found.records, "log record")} of this share-partition, the latest first. Acquisitions are not stored, only their results: the delivery count shows them. Reload the page to read the log again.`));
    };
    return { node, update };
  },
};

const orDash = (number) => (number === null ? "–" : String(number));

function eventTable(found, context) {
  const isNewOwner = (event, place) => found.events[place + 1] && event.owner_epoch !== found.events[place + 1].owner_epoch;
  const recordColumns = [
    { label: "Delivery state", cell: (event) => (event.delivery_state ? stateMark(event.delivery_state) : "–") },
    { label: "Deliveries", class: "n", cell: (event) => (event.delivery_count === null ? "–" : count(event.delivery_count)) },
  ];
  return table("Delivery history", [
    { label: "Time (UTC)", cell: (event) => el("time", { datetime: event.time }, event.time?.replace("T", " ").replace("Z", "") ?? "–") },
    ...(found.record_offset === null ? [] : recordColumns),
    { label: "Event", class: "what", cell: (event) => escapeInvisible(event.what) },
    { label: "Log record", cell: (event) => [el("b", {}, String(event.log_offset)), " ", event.record] },
    { label: "Owner epoch", class: "n", cell: (event, place) => [orDash(event.owner_epoch), isNewOwner(event, place) && " (new owner)"] },
    { label: "Leader epoch", class: "n", cell: (event) => orDash(event.leader_epoch) },
    { label: "Start offset", class: "n", cell: (event) => orDash(event.start_offset === null || event.start_offset < 0 ? null : event.start_offset) },
  ], found.events, context.view);
}

function pager(found, view) {
  if (found.next === null && view.before === undefined) return null;
  return pagerLinks("Pages", view, [
    ["« latest", undefined, view.before !== undefined],
    ["earlier ›", String(found.next), found.next !== null],
  ], "before");
}
