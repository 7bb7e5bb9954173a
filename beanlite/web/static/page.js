// Enhances pages that are complete without it: parts marked data-live are refreshed every two seconds, times are shown
// in the reader's time zone, and keys lead from page to page.
"use strict";

const EVERY_MS = 2000;
const TRY_AGAIN_MS = 5000;

function showTimes(part) {
  for (const time of part.querySelectorAll("time")) {
    const moment = new Date(time.dateTime);
    time.title = time.dateTime;
    time.textContent = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
  }
}

function isInUse(part) {
  const active = document.activeElement;
  return part.contains(active) && active.matches("input, select, textarea");
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
  for (const { name } of [...now.attributes]) if (!next.hasAttribute(name)) now.removeAttribute(name);
  for (const { name, value } of next.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  const from = [...now.childNodes];
  const to = [...next.childNodes];
  to.forEach((node, at) => (at < from.length ? merge(from[at], node) : now.append(node.cloneNode(true))));
  from.slice(to.length).forEach((node) => node.remove());
}

async function refresh() {
  const part = document.querySelector("[data-live]");
  if (!part) return;
  let wait = EVERY_MS;
  if (!document.hidden && !isInUse(part)) {
    try {
      const reply = await fetch(location.href, { headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      const next = page.getElementById(part.id);
      if (reply.status !== 503 && next) {
        showTimes(next);
        merge(part, next);
        part.classList.remove("stale");
      } else {
        part.classList.add("stale");
        wait = TRY_AGAIN_MS;
      }
    } catch {
      part.classList.add("stale");
      wait = TRY_AGAIN_MS;
    }
  }
  setTimeout(refresh, wait);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  if (event.key === "/") {
    const field = document.querySelector("[data-search]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
    return;
  }
  const link = document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`);
  if (link) link.click();
}

function offerAll() {
  for (const all of document.querySelectorAll("[data-all]")) {
    all.hidden = false;
    all.addEventListener("change", () => {
      for (const each of all.closest("table").querySelectorAll('input[name="id"]')) each.checked = all.checked;
    });
  }
}

showTimes(document);
offerAll();
document.addEventListener("keydown", onKey);
setTimeout(refresh, EVERY_MS);
