// Enhances pages that are complete without it: parts marked data-live are refreshed every two seconds, times are shown
// in the reader's day, texts are copied, and keys do what links and buttons do. Jobs are selected by jobs.js.
"use strict";

const EVERY_MS = 2000;
const SELDOM_MS = 15_000;
const TRY_AGAIN_MS = 5000;
const LATE_MS = 10_000;
// For how long after the last letter somebody is said to type.
const TYPING_MS = 10_000;
// After a reply that took long, for how many times as long nothing is asked.
const REST = 10;

// Says that the page is old, while it is.
const old = Object.assign(document.createElement("p"), { role: "alert", className: "notice bad" });
let title = document.title; // without what tellOld() adds
let freshAt = new Date();
let typedAt = -Infinity;
let refreshing = null;
let planned = 0; // the next refresh

const TIME = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

function showTimes(part) {
  const now = new Date();
  for (const tick of part.querySelectorAll("tspan[datetime]")) {
    const parts = "day" in tick.dataset ? { month: "short", day: "numeric" } : TIME;
    tick.textContent = new Date(tick.getAttribute("datetime")).toLocaleString(undefined, parts);
  }
  for (const time of part.querySelectorAll("time")) {
    const moment = new Date(time.dateTime);
    time.title = moment.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
    if ("age" in time.dataset) {
      time.title = `since ${time.title}`;
      continue;
    }
    const parts = "exact" in time.dataset ? { ...TIME, second: "2-digit" } : { ...TIME };
    if (moment.toDateString() !== now.toDateString()) Object.assign(parts, { month: "short", day: "numeric" });
    if (moment.getFullYear() !== now.getFullYear()) parts.year = "numeric";
    if ("zone" in time.dataset) parts.timeZoneName = "short";
    time.textContent = moment.toLocaleString(undefined, parts);
  }
}

function isInField() {
  return document.activeElement.matches("textarea, select, input:not([type=checkbox], [type=radio])");
}

// Whether something is being typed, which a refresh would disturb.
function isTyping() {
  return isInField() && performance.now() < typedAt + TYPING_MS;
}

// The children of a list by their ids.
function byId(list) {
  return new Map([...list.children].filter((each) => each.dataset.id).map((each) => [each.dataset.id, each]));
}

// Merges a list whose children have ids: each stays the element that it was, with its focus and its selection.
function mergeList(now, next) {
  const wanted = byId(next);
  for (const [id, child] of byId(now)) {
    if (wanted.has(id)) continue;
    if (child.contains(document.activeElement)) {
      const other = child.nextElementSibling ?? child.previousElementSibling;
      if (other) focusOn(other);
    }
    child.remove();
  }
  const active = document.activeElement;
  const present = byId(now);
  let place = now.firstElementChild;
  for (const [id, child] of wanted) {
    const mine = present.get(id);
    if (mine === place && mine) {
      place = place.nextElementSibling;
    } else {
      now.insertBefore(mine ?? child.cloneNode(true), place);
    }
    if (mine) merge(mine, child);
  }
  if (now.contains(active)) active.focus({ preventScroll: true }); // an element that is moved loses it
}

function focusOn(row) {
  row.querySelector("a")?.focus();
}

// Replaces the text and attributes that differ, and leaves the rest of the page alone, to keep the focus and selection.
function merge(now, next) {
  if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName) {
    now.replaceWith(next.cloneNode(true));
    return;
  }
  if (now.nodeType === Node.TEXT_NODE) {
    if (now.data !== next.data) now.data = next.data;
    return;
  }
  if (now.nodeType !== Node.ELEMENT_NODE) return;
  const kept = "kept" in now.dataset ? ["open"] : []; // what the reader has opened
  for (const { name } of [...now.attributes]) if (!next.hasAttribute(name) && !kept.includes(name)) now.removeAttribute(name);
  for (const { name, value } of next.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  if (next.firstElementChild?.dataset.id && now.firstElementChild?.dataset.id) {
    mergeList(now, next);
    return;
  }
  const from = [...now.childNodes];
  const to = [...next.childNodes];
  to.forEach((node, at) => (at < from.length ? merge(from[at], node) : now.append(node.cloneNode(true))));
  from.slice(to.length).forEach((node) => node.remove());
}

function refreshPart(part, page) {
  const next = page?.getElementById(part.id);
  part.classList.toggle("stale", !next);
  if (!next) return;
  showTimes(next);
  merge(part, next);
}

// Asks for this page again; returns it, or why there is none.
async function ask() {
  try {
    const reply = await fetch(location.href, { headers: { Accept: "text/html", "Beanlite-Live": "1" } });
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    const told = page.querySelector("main > .notice.bad, main > .empty");
    const why = told ? told.textContent.trim() : `beanlite web answers ${reply.status}`;
    return { page: reply.status < 500 ? page : null, why };
  } catch {
    return { page: null, why: "beanlite web can't be reached" };
  }
}

// Says why what the page shows is not updated; or, if there is no reason, that it is.
function tellOld(why) {
  document.title = why ? `Not updated: ${title}` : title;
  if (old.dataset.why === why) return; // or it would be read out each time
  const since = document.createElement("time");
  since.dateTime = freshAt.toISOString();
  old.replaceChildren("Not updated since ", since, `: ${why}`);
  old.dataset.why = why;
  showTimes(old);
  if (why) document.querySelector(".low").append(old);
  else old.remove();
}

// Shows what a page has that was asked for; returns whether it has anything of what is shown here.
function show(page, why) {
  const parts = [...document.querySelectorAll("[data-live]")];
  const isOld = !parts.some((part) => page?.getElementById(part.id));
  if (!isOld) title = page.title;
  if (!isOld && document.hidden) {
    document.title = title;
    return true;
  }
  if (!isOld) freshAt = new Date();
  tellOld(isOld ? why : "");
  for (const part of parts) refreshPart(part, page);
  document.dispatchEvent(new Event("refreshed"));
  return !isOld;
}

// Refreshes the page, or loads it if it is one that says that the server is away; returns when to do so again. In a tab
// that is hidden, only what its title tells is asked for.
async function refreshOnce() {
  const [concerned, often] = document.hidden ? ["data-title", SELDOM_MS] : ["data-live", EVERY_MS];
  const isError = document.querySelector("[data-retry]");
  if (!(isError || document.querySelector(`[${concerned}]`)) || isHalted() || isTyping()) return EVERY_MS;
  const began = performance.now();
  const late = isError ? 0 : setTimeout(() => tellOld("there is no answer yet"), LATE_MS);
  const { page, why } = await ask();
  clearTimeout(late);
  if (isHalted() || isTyping()) return EVERY_MS;
  if (isError && page) location.reload();
  if (isError || !show(page, why)) return Math.max(often, TRY_AGAIN_MS);
  // The page of several servers has to say soon that one is away.
  const rest = document.querySelector("[data-soon]") ? 0 : REST;
  return Math.max(often, rest * (performance.now() - began));
}

function refresh() {
  clearTimeout(planned);
  refreshing ??= refreshOnce().then((wait) => {
    refreshing = null;
    planned = setTimeout(refresh, wait);
  });
  return refreshing;
}

// Whether the reader has halted the refreshes, to read what moves.
function isHalted() {
  return halter.classList.contains("halted");
}

// The clipboard's own interface is missing where the page is not encrypted: what is copied is selected.
function copy(button) {
  getSelection().selectAllChildren(document.querySelector(button.dataset.copy));
  button.textContent = document.execCommand("copy") ? "copied" : "selected";
}

// Times are shown in the reader's zone, and so those in a filter are meant in it, too.
function tellZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const each of document.querySelectorAll("[data-reader]")) {
    if (each.matches("input")) each.value = zone;
    else each.textContent = zone;
  }
}

// A notice is shown once, and so its token does not stay in the address.
function forgetNotice() {
  const here = new URL(location.href);
  if (!here.searchParams.has("done")) return;
  here.searchParams.delete("done");
  history.replaceState(history.state, "", here);
}

// Leads back to the same place of the page after a form was sent.
function keepPlace() {
  const place = sessionStorage.getItem("place");
  sessionStorage.removeItem("place");
  if (place && document.querySelector(".notice.done")) {
    const [path, top] = JSON.parse(place);
    if (path === location.pathname) window.scrollTo(0, top);
  }
  document.addEventListener("submit", () => {
    sessionStorage.setItem("place", JSON.stringify([location.pathname, window.scrollY]));
  });
}

const help = document.getElementById("keys");
const halter = document.querySelector("[data-halt]");

// Keys of one character; those that lead to a page are pressed after g.
let isAfterG = false;

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isInField()) return;
  const key = isAfterG ? `g ${event.key}` : event.key;
  isAfterG = key === "g";
  if (help.open) return;
  const element = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (key === "?") help.showModal();
  else if (!element) return;
  else if (element.matches("input")) element.focus();
  else element.click();
  event.preventDefault();
}

forgetNotice();
keepPlace();
tellZone();
showTimes(document);
document.addEventListener("keydown", onKey);
const helpButton = document.querySelector("[data-help]");
helpButton.hidden = false;
helpButton.addEventListener("click", () => help.showModal());
help.querySelector("[data-close]").addEventListener("click", () => help.close());
halter.hidden = !document.querySelector("[data-live], [data-retry]");
halter.addEventListener("click", () => {
  const halts = halter.classList.toggle("halted");
  halter.firstElementChild.textContent = halts ? "Halted: refresh again" : "Halt refreshes";
});
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button));
}
document.addEventListener("input", () => {
  typedAt = performance.now();
});
if (!halter.hidden) {
  planned = setTimeout(refresh, EVERY_MS);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
}
