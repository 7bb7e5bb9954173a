// Shows the values of a chart under the pointer, and by the arrow keys. They are those of the table below the chart.
"use strict";

const plot = document.querySelector("[data-chart]");
const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageUp: 10, PageDown: -10 };

function made(name, parent) {
  const element = document.createElement("div");
  element.className = name;
  parent.append(element);
  return element;
}

function showCharts() {
  const over = made("over", plot);
  const cross = made("cross", over);
  const tip = made("tip", over);
  let shown = null; // the moment whose values are shown
  Object.assign(over, { role: "slider", tabIndex: 0, ariaLabel: "Moment", ariaOrientation: "horizontal" });

  const rows = () => [...document.querySelectorAll("#values tr")];
  const pictures = () => [...plot.querySelectorAll("svg.lines")].map((each) => each.getBoundingClientRect());

  // Lays the part that feels the pointer over the panels, wherever these are by now.
  function place() {
    const [all, boxes] = [plot.getBoundingClientRect(), pictures()];
    const first = boxes[0];
    Object.assign(over.style, {
      // Both sides and no width: a window that becomes narrower is not scrolled sideways until it is laid again.
      left: `${first.left - all.left - plot.clientLeft}px`,
      right: `${all.right - first.right - plot.clientLeft}px`,
      top: `${first.top - all.top - plot.clientTop}px`,
      height: `${boxes.at(-1).bottom - first.top}px`,
    });
    return boxes;
  }

  function show() {
    const boxes = place();
    const all = rows();
    const now = all.findLastIndex((row) => row.cells[1].textContent) ?? 0;
    let at = all.findIndex((row) => row.dataset.id === shown);
    if (shown && at < 0) shown = null; // it is too long ago by now
    if (at < 0) at = now;
    const row = all[at];
    if (!row) return;
    const heads = [...document.querySelectorAll(".values th")];
    const values = heads.map((head, column) => [head, row.cells[column]]).filter(([, cell]) => cell.textContent);
    Object.assign(over, { ariaValueMin: 0, ariaValueMax: all.length - 1, ariaValueNow: at });
    over.ariaValueText = values.map(([head, cell]) => `${head.textContent} ${cell.textContent}`).join(", ");
    over.classList.toggle("on", shown !== null);
    const x = (row.dataset.x / 100) * boxes[0].width;
    cross.style.left = `${x}px`;
    cross.replaceChildren();
    tip.replaceChildren();
    for (const [head, cell] of values) {
      const line = made(head.dataset.key ? `key ${head.dataset.key}` : "when", tip);
      line.textContent = head.dataset.key ? `${head.textContent} ` : cell.textContent;
      if (!head.dataset.key) continue;
      const value = document.createElement("b");
      value.textContent = cell.textContent;
      line.append(value);
      if (!cell.dataset.y) continue;
      const dot = made(`dot ${head.dataset.key}`, cross);
      dot.style.top = `${boxes[cell.dataset.panel].top - boxes[0].top + Number(cell.dataset.y)}px`;
    }
    const isRight = x > boxes[0].width / 2;
    tip.style.left = isRight ? "" : `${x + 12}px`;
    tip.style.right = isRight ? `${boxes[0].width - x + 12}px` : "";
  }

  function showAt(moment) {
    shown = moment;
    show();
  }

  over.addEventListener("pointermove", (event) => {
    const box = over.getBoundingClientRect();
    const x = (100 * (event.clientX - box.left)) / box.width;
    const near = rows().reduce((best, row) => (Math.abs(row.dataset.x - x) < Math.abs(best.dataset.x - x) ? row : best));
    showAt(near.dataset.id);
  });
  over.addEventListener("pointerleave", () => showAt(null));
  over.addEventListener("blur", () => showAt(null));
  over.addEventListener("keydown", (event) => {
    const all = rows();
    const now = Number(over.ariaValueNow);
    let at = null;
    if (event.key === "Escape") showAt(null);
    else if (event.key === "Home") at = 0;
    else if (event.key === "End") at = all.length - 1;
    else if (event.key in STEPS) at = Math.min(Math.max(now + STEPS[event.key], 0), all.length - 1);
    else return;
    event.preventDefault();
    if (at !== null) showAt(all[at].dataset.id);
  });
  document.addEventListener("refreshed", show);
  new ResizeObserver(show).observe(plot);
  show();
}

if (plot) showCharts();
