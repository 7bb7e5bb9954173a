// Selects jobs in a table, with the mouse and with keys, and offers what can be done to those that are selected.
"use strict";

const table = document.querySelector("[data-jobs]");
let last = null; // the box that was ticked last, where a range begins

function boxes() {
  return [...table.querySelectorAll('input[name="id"]')];
}

function rowOf(element) {
  return element.closest("tr[data-id]");
}

function selectsAll() {
  return table.querySelector('input[name="scope"]:checked')?.value === "all";
}

// Shows how many jobs are selected, and only the buttons that apply to one of them.
function offer() {
  const bar = table.querySelector(".bar");
  if (!bar) return;
  const all = boxes();
  const selected = all.filter((box) => box.checked);
  const every = bar.querySelector("[data-all]");
  every.checked = selected.length > 0 && selected.length === all.length;
  every.indeterminate = selected.length > 0 && selected.length < all.length;
  for (const box of all) rowOf(box).classList.toggle("selected", box.checked);
  bar.querySelector("[data-selected]").textContent = `${selected.length} selected`;
  bar.querySelector("[data-unselected]").hidden = selectsAll() || selected.length > 0;
  const states = selectsAll() || !selected.length
    ? (table.dataset.jobs || "ready reserved delayed buried").split(" ")
    : selected.map((box) => rowOf(box).dataset.state);
  for (const button of bar.querySelectorAll("[data-states]")) {
    const applies = button.dataset.states.split(" ").some((state) => states.includes(state));
    (button.value === "delay" ? button.parentElement : button).hidden = !applies;
    button.disabled = !selectsAll() && !selected.length;
  }
}

function select(box, checked) {
  box.checked = checked;
  last = box;
  table.querySelector('input[name="scope"][value="ticked"]').checked = true;
}

function onClick(event) {
  const box = event.target;
  if (!box.matches('input[name="id"]')) return;
  const all = boxes();
  const from = all.indexOf(last);
  const to = all.indexOf(box);
  if (event.shiftKey && from >= 0) {
    for (const each of all.slice(Math.min(from, to), Math.max(from, to) + 1)) each.checked = box.checked;
  }
  select(box, box.checked);
  offer();
}

function move(step) {
  const rows = [...table.querySelectorAll("tr[data-id]")];
  const now = rows.indexOf(document.activeElement.closest("tr"));
  const row = rows[now < 0 ? (step > 0 ? 0 : rows.length - 1) : now + step];
  if (!row) return;
  focusOn(row);
  row.scrollIntoView({ block: "nearest" });
}

// Does what a button does to the selected jobs or, if there are none, to the job that has the focus.
function act(what) {
  const row = document.activeElement.closest("tr[data-id]");
  if (!table.querySelector(".bar")) return;
  const box = row?.querySelector('input[name="id"]');
  if (box && !selectsAll() && !boxes().some((each) => each.checked)) {
    select(box, true);
    offer();
  }
  const button = table.querySelector(`.bar button[value="${what}"]`);
  if (button && !button.hidden && !button.disabled) button.click();
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  x: () => {
    const box = document.activeElement.closest("tr[data-id]")?.querySelector('input[name="id"]');
    if (box) select(box, !box.checked);
  },
  "*": () => table.querySelector("[data-all]")?.click(),
  K: () => act("kick"),
  b: () => act("bury"),
  d: () => act("delete"),
  m: () => {
    const more = table.querySelector(".bar details");
    if (!more) return;
    more.open = true;
    table.querySelector('input[name="to"]').focus();
  },
};

function onTableKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isInField()) return;
  if (help.open || !Object.hasOwn(KEYS, event.key)) return;
  KEYS[event.key]();
  offer();
  event.preventDefault();
}

// Enter in a field presses the button behind it.
function onEnter(event) {
  const button = event.target.closest(".with")?.querySelector("button");
  if (event.key !== "Enter" || !button || !event.target.matches("input")) return;
  event.preventDefault();
  if (!button.disabled) button.click();
}

for (const form of document.querySelectorAll("form[data-jobs], form[data-one]")) form.addEventListener("keydown", onEnter);
if (table) {
  const every = table.querySelector("[data-all]");
  if (every) {
    every.hidden = false;
    every.addEventListener("change", () => {
      for (const box of boxes()) select(box, every.checked);
    });
  }
  table.addEventListener("click", onClick);
  table.addEventListener("change", offer);
  document.addEventListener("keydown", onTableKey);
  document.addEventListener("refreshed", offer);
  offer();
}
