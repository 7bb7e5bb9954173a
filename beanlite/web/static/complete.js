// Completes the word of the filter that is being typed: keys, their values, and the names of tubes. A combobox as the
// WAI-ARIA practices have it: the focus stays in the field.
"use strict";

const WAIT_MS = 120;
const WORDS = /(?:"(?:[^"\\]|\\.)*(?:"|\\?$)|[^\s"])+/g;

const field = document.querySelector("[data-complete]");
let list = null;
let timer = 0;
let asked = 0; // the number of the last question: answers to earlier ones are late

function isOpen() {
  return !list.hidden;
}

function word() {
  const before = field.value.slice(0, field.selectionStart);
  const last = [...before.matchAll(WORDS)].at(-1);
  return last && last.index + last[0].length === before.length ? last[0] : "";
}

function shut() {
  list.hidden = true;
  list.replaceChildren();
  field.setAttribute("aria-expanded", "false");
  field.removeAttribute("aria-activedescendant");
}

function offerWords(options) {
  shut();
  const typed = word();
  options.filter((each) => each.word !== typed).forEach((each, at) => {
    const item = document.createElement("li");
    item.id = `completion-${at}`;
    item.role = "option";
    item.dataset.word = each.word;
    item.dataset.end = each.is_whole ? " " : "";
    item.setAttribute("aria-selected", "false");
    const code = document.createElement("code");
    code.textContent = each.word;
    item.append(code, each.help);
    list.append(item);
  });
  list.hidden = !list.firstElementChild;
  field.setAttribute("aria-expanded", String(isOpen()));
}

async function askWords() {
  const typed = word();
  const number = ++asked;
  const url = new URL(field.dataset.complete, location.href);
  url.searchParams.set("word", typed);
  let options = [];
  try {
    const reply = await fetch(url);
    if (reply.ok) options = await reply.json();
  } catch {
    // The page can't be reached: nothing is offered.
  }
  if (number === asked && document.activeElement === field && word() === typed) offerWords(options);
}

function askSoon() {
  clearTimeout(timer);
  timer = setTimeout(askWords, WAIT_MS);
}

function active() {
  return list.querySelector('[aria-selected="true"]');
}

function moveTo(item) {
  active()?.setAttribute("aria-selected", "false");
  item.setAttribute("aria-selected", "true");
  item.scrollIntoView({ block: "nearest" });
  field.setAttribute("aria-activedescendant", item.id);
}

// Puts a word in place of the one that is being typed; a key is followed by its values.
function take(item) {
  const end = field.selectionStart;
  const text = item.dataset.word + item.dataset.end;
  field.setRangeText(text, end - word().length, end, "end");
  shut();
  if (item.dataset.end) asked += 1;
  else askWords();
}

const FIELD_KEYS = {
  ArrowDown: () => moveTo(active()?.nextElementSibling ?? list.firstElementChild),
  ArrowUp: () => moveTo(active()?.previousElementSibling ?? list.lastElementChild),
  Enter: () => take(active()),
  Tab: () => take(active() ?? list.firstElementChild),
  Escape: shut,
};

function onFieldKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.isComposing) return;
  if (!isOpen()) {
    if (event.key === "ArrowDown") askWords();
    else if (event.key === "Escape") field.blur();
    else return;
    event.preventDefault();
    return;
  }
  if (!Object.hasOwn(FIELD_KEYS, event.key) || (event.key === "Enter" && !active())) return;
  event.preventDefault();
  FIELD_KEYS[event.key]();
}

function begin() {
  list = document.createElement("ul");
  list.id = "completions";
  list.role = "listbox";
  list.hidden = true;
  list.setAttribute("aria-label", "Completions");
  field.after(list);
  field.role = "combobox";
  field.setAttribute("aria-autocomplete", "list");
  field.setAttribute("aria-controls", list.id);
  field.setAttribute("aria-expanded", "false");
  field.addEventListener("input", askSoon);
  field.addEventListener("keydown", onFieldKey);
  field.addEventListener("blur", shut);
  list.addEventListener("mousedown", (event) => {
    event.preventDefault(); // or the field would lose the focus
    const item = event.target.closest("li");
    if (item) take(item);
  });
}

if (field) begin();
