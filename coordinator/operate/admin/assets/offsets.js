// Draw the window of a share-partition: the offsets from the start offset to the last one with a delivery state.
// Cells show the offsets of one block. Blocks begin at multiples of their size, so that cells keep their place while the
// window moves.

import { count, el, pagerLinks, plural } from "./elements.js";

export const BLOCK = 256;
// Maximum number of cells in a row. Rows begin at multiples of it.
const ROW = 32;

export const STATES = {
  ACKNOWLEDGED: { sign: "✓", said: "acknowledged", meaning: "processed" },
  AVAILABLE: { sign: "↺", said: "available", meaning: "released by a consumer or timed out; will be delivered again" },
  ACQUIRED: { sign: "▸", said: "acquired", meaning: "in delivery to a consumer" },
  ARCHIVING: { sign: "…", said: "archiving", meaning: "rejected or at the delivery limit; being copied to the dead letter queue" },
  ARCHIVED: { sign: "✕", said: "archived", meaning: "rejected or at the delivery limit; not delivered again" },
  UNKNOWN: { sign: "?", said: "unknown", meaning: "this release has no name for the delivery state" },
};
export const NOTHING = { sign: "·", said: "no stored state", meaning: "in its first delivery, or not delivered yet" };
export const BELOW = { sign: "", said: "below the start offset", meaning: "complete" };

export const stateStyle = (state) => (state === null ? NOTHING : STATES[state] ?? STATES.UNKNOWN);
export const stateClass = (state) => `s-${state === null ? "nothing" : state === "BELOW" ? "below" : state.toLowerCase()}`;

// A delivery state as a sign and a word.
export function stateMark(state) {
  const { sign, said, meaning } = stateStyle(state);
  return el("span", { class: `mark ${stateClass(state)}`, title: meaning },
    el("span", { class: "sign", "aria-hidden": "true" }, sign), said);
}

export function times(number) {
  return number === 1 ? "once" : number === 2 ? "twice" : `${count(number)} times`;
}

// The first and last offset of the window, inclusive; without records `last` is below `first`.
export function windowOf(detail) {
  const first = Math.max(0, detail.start_offset);
  return { first, last: Math.max(first - 1, detail.last_in_flight_offset ?? -1) };
}

// The number of records by state, including null: [state, records], in the order of STATES.
export function countByState(detail) {
  const { first, last } = windowOf(detail);
  const counts = Object.keys(STATES).map((state) => [state, detail.records_by_state[state] ?? 0]);
  counts.push([null, last - first + 1 - detail.in_flight_records]);
  return counts.filter(([, records]) => records > 0);
}

// A bar of the shares of the delivery states, with a text for screen readers.
export function stateBar(recordsByState) {
  const counts = Object.keys(STATES).map((state) => [state, recordsByState[state] ?? 0]).filter(([, n]) => n);
  const words = counts.map(([state, n]) => `${count(n)} ${stateStyle(state).said}`).join(", ");
  const parts = counts.map(([state, n]) => el("span", { class: stateClass(state), style: { "flex-grow": n } }));
  const signs = counts.map(([state, n]) => el("span", {}, `${stateStyle(state).sign} ${count(n)}`));
  return el("span", { class: "bar-box", role: "img", "aria-label": words || "nothing in flight", title: words || null },
    el("span", { class: "bar" }, parts), el("span", { class: "signs" }, signs));
}

export function legend(detail) {
  const items = countByState(detail).map(([state, records]) =>
    el("li", {}, stateMark(state), " ", el("b", {}, count(records))));
  return el("ul", { class: "legend", "aria-label": "Records in the window by delivery state" }, items);
}

export const blockOf = (offset) => Math.floor(offset / BLOCK) * BLOCK;

// The cells of a block: a list box with arrow keys, in which one offset is selected and described.
export function cells(detail, block, chosen, go) {
  const { first, last } = windowOf(detail);
  const end = Math.max(last, detail.end_offset === null ? last : detail.end_offset - 1);
  const items = [];
  const runs = detail.near;
  let at = 0;
  // Rows entirely below or after the window are omitted, unless they contain the selected offset.
  const row = (offset) => Math.floor(offset / ROW) * ROW;
  const from = Math.max(block, Math.min(row(first), row(chosen)));
  const to = Math.min(block + BLOCK, Math.max(row(end), row(chosen)) + ROW);
  for (let offset = from; offset < to; offset += 1) {
    while (at < runs.length && runs[at].last_offset < offset) at += 1;
    const run = at < runs.length && runs[at].first_offset <= offset ? runs[at] : null;
    if (offset % 8 === 0) items.push(rowLabel(offset));
    items.push(cell(offset, cellOf(offset, run, first, end), run, offset === chosen));
  }
  const box = el("div", {
    class: "cells", role: "listbox", "aria-label": `Offsets ${from} to ${to - 1}`,
    on: {
      click: (event) => {
        const clicked = event.target.closest("[data-offset]");
        if (clicked) go({ at: Number(clicked.dataset.offset) }, { focus: true });
      },
      keydown: (event) => {
        const steps = {
          ArrowRight: 1, ArrowLeft: -1, ArrowDown: columnsOf(box), ArrowUp: -columnsOf(box), PageDown: BLOCK, PageUp: -BLOCK,
        };
        if (!(event.key in steps)) return;
        event.preventDefault();
        go({ at: Math.max(0, chosen + steps[event.key]) }, { focus: true });
      },
    },
  }, items);
  return box;
}

function cellOf(offset, run, first, end) {
  if (offset < first) return "BELOW";
  if (run) return run.delivery_state;
  return offset <= end ? null : "BEYOND";
}

function rowLabel(offset) {
  const widths = [32, 16, 8].filter((columns) => offset % columns === 0).map((columns) => `r${columns}`);
  return el("span", { class: `row ${widths.join(" ")}`, "aria-hidden": "true" }, String(offset));
}

function cell(offset, state, run, chosen) {
  const attributes = { role: "option", "data-offset": offset, "data-key": `o${offset}`, tabindex: chosen ? 0 : -1, "aria-selected": String(chosen) };
  if (state === "BEYOND") return el("span", { ...attributes, class: "cell s-beyond", "aria-label": `${offset}: no record known` });
  const { sign, said } = state === "BELOW" ? BELOW : stateStyle(state);
  const again = run && state !== "BELOW" && run.delivery_count > 1;
  return el("span", {
    ...attributes, class: `cell ${stateClass(state)}`,
    "aria-label": `${offset}: ${said}${run && state !== "BELOW" ? `, delivered ${times(run.delivery_count)}` : ""}`,
  }, sign, again && el("sub", {}, String(run.delivery_count)));
}

function columnsOf(box) {
  const row = [...box.querySelectorAll(".cell")];
  const top = row[0].offsetTop;
  const below = row.findIndex((node) => node.offsetTop > top);
  return below === -1 ? row.length : below;
}

// Describe one offset in a sentence.
export function describeOffset(detail, offset) {
  const { first, last } = windowOf(detail);
  const about = [el("b", {}, `Offset ${offset}`), " "];
  if (offset < first) return [...about, `is below the start offset ${first}: complete.`];
  const run = detail.near.find(({ last_offset }) => last_offset >= offset);
  if (run && run.first_offset <= offset) {
    about.push("is ", stateMark(run.delivery_state), `, delivered ${times(run.delivery_count)}`);
    if (run.records > 1) about.push(`, in a range of ${plural(run.records, "record")}, ${run.first_offset} to ${run.last_offset}`);
    return [...about, `: ${stateStyle(run.delivery_state).meaning}.`];
  }
  if (offset <= last) return [...about, "has no stored state: it is in its first delivery, or there is no record."];
  if (detail.end_offset !== null && offset >= detail.end_offset) return [...about, "is after the last record."];
  return [...about, "is after the window: not delivered yet, or in its first delivery."];
}

// Links to the previous and next block, if they are in the window.
export function blockLinks(detail, block, view) {
  const { first, last } = windowOf(detail);
  return pagerLinks("Offsets", view, [
    ["« first", first, block > first],
    ["‹ earlier", Math.max(first, block - BLOCK), block > first],
    `offsets ${block} to ${block + BLOCK - 1}`,
    ["later ›", Math.min(last, block + BLOCK), block + BLOCK <= last],
    ["last »", last, block + BLOCK <= last],
  ], "at");
}
