#include "harness/report/html.h"

namespace harness {

const char* const page_style = R"css(
:root {
  --ground: #fbfaf8; --card: #ffffff; --text: #1d1d1f; --quiet: #62625f; --line: #dedcd6;
  --good: #0a6b3d; --good-ground: #e3f3ea; --bad: #a8201a; --bad-ground: #fbe9e7; --wait: #7a5200; --wait-ground: #fbf0d9;
  --link: #0b57a4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #141517; --card: #1c1e21; --text: #ececea; --quiet: #a3a39e; --line: #34373b;
    --good: #6fd3a0; --good-ground: #123524; --bad: #ff9c94; --bad-ground: #431a18; --wait: #e8bf6a; --wait-ground: #3a2d10;
    --link: #8cc2ff;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 0 clamp(1rem, 4vw, 2.5rem) 4rem; }
h1, h2, p, dl, ul { margin: 0; }
a { color: var(--link); }
code, pre { font: .875em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
header { padding: clamp(1.5rem, 5vw, 3rem) 0 1.5rem; border-bottom: 1px solid var(--line); }
.program { color: var(--quiet); font-weight: 600; letter-spacing: .02em; }
h1 { font-size: clamp(2.4rem, 10vw, 4.5rem); line-height: 1.05; letter-spacing: -.02em; font-weight: 750; }
.accepted h1 { color: var(--good); }
.rejected h1 { color: var(--bad); }
.counts { font-size: clamp(1.1rem, 3.5vw, 1.4rem); margin-top: .35rem; font-variant-numeric: tabular-nums; }
.reason { margin-top: 1rem; padding: .75rem 1rem; background: var(--bad-ground); border-radius: .5rem; overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, auto)); gap: .75rem 2rem; margin-top: 1.5rem; justify-content: start; }
.facts .wide { grid-column: 1 / -1; }
dt { color: var(--quiet); font-size: .8125rem; }
dd { margin: 0; overflow-wrap: anywhere; }
section { margin-top: 2.75rem; }
h2 { font-size: 1.4rem; line-height: 1.25; letter-spacing: -.01em; margin-bottom: .9rem; }
.note { color: var(--quiet); font-size: .875rem; margin: .6rem 0 1.2rem; max-width: 46rem; }
.quiet { color: var(--quiet); font-weight: 400; overflow-wrap: anywhere; }
.nobreak { white-space: nowrap; }
.failures { list-style: none; padding: 0; display: grid; gap: .6rem; }
.failures li { background: var(--bad-ground); border-radius: .5rem; padding: .7rem 1rem; overflow-wrap: anywhere; min-width: 0; }
.failures .case { font-weight: 650; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .75rem; text-align: left; vertical-align: top; white-space: nowrap; }
th { color: var(--quiet); font-weight: 600; border-bottom: 1px solid var(--line); }
tbody tr + tr td { border-top: 1px solid var(--line); }
.number { text-align: right; }
.wrapping td { white-space: normal; }
.wrapping .number { width: 1%; }
td.long { white-space: normal; min-width: 16rem; max-width: 34rem; overflow-wrap: anywhere; color: var(--quiet); }
td.long:empty { min-width: 0; }
th button { all: unset; cursor: pointer; }
th button:hover { color: var(--text); }
th button:focus-visible, summary:focus-visible, input:focus-visible, .scroll:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " \2191"; }
th[aria-sort=descending] button::after { content: " \2193"; }
.verdict { padding: .05rem .45rem; border-radius: .3rem; font-weight: 600; }
.verdict.pass { color: var(--good); background: var(--good-ground); }
.verdict.fail { color: var(--bad); background: var(--bad-ground); }
.verdict.skipped { color: var(--wait); background: var(--wait-ground); }
.figures { columns: 24rem; column-gap: 1.25rem; }
figure { margin: 0 0 1.25rem; break-inside: avoid; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; overflow: hidden; min-width: 0; }
.drawing { background: #ffffff; padding: .75rem; }
.drawing svg { display: block; width: 100%; height: auto; }
figcaption { padding: .75rem 1rem; font-size: .875rem; overflow-wrap: anywhere; }
figure details { padding: 0 1rem .9rem; }
figure .scroll { max-height: 18rem; overflow: auto; }
figure table { font-size: .8125rem; }
details.unit { margin-top: 1.5rem; }
summary { cursor: pointer; font-weight: 600; }
figure summary { font-weight: 400; font-size: .875rem; color: var(--link); margin-bottom: .5rem; }
.unit > summary { font-size: 1.1rem; margin-bottom: .5rem; overflow-wrap: anywhere; }
.fixed { font-size: .875rem; color: var(--quiet); margin-bottom: .6rem; }
.fixed b { color: var(--text); font-weight: 600; }
.filter { font: inherit; font-size: .875rem; color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: .4rem;
  padding: .35rem .6rem; margin-bottom: .6rem; width: min(100%, 22rem); }
#machine details { margin-top: .75rem; }
#machine .scroll, #machine pre { margin-top: .5rem; }
pre { margin: 0; padding: 1rem; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; white-space: pre-wrap; }
@media print {
  :root { --ground: #fff; --card: #fff; --text: #000; --quiet: #444; --line: #bbb; --good: #0a6b3d; --bad: #a8201a; --wait: #7a5200;
    --good-ground: #fff; --bad-ground: #fff; --wait-ground: #fff; --link: #000; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  .filter { display: none; }
  .scroll, figure .scroll { overflow: visible; max-height: none; border: 0; }
  table { font-size: 8pt; }
  th, td { padding: .15rem .4rem; white-space: normal; }
  figure, .failures li, tr { break-inside: avoid; }
  .failures li, .reason { border: 1px solid var(--line); }
  .figures { columns: 2; }
}
)css";

const char* const page_script = R"js(
(function () {
  "use strict";
  function sortable(table, column) {
    var head = table.tHead.rows[0].cells[column], body = table.tBodies[0];
    var button = document.createElement("button");
    button.type = "button";
    while (head.firstChild) button.appendChild(head.firstChild);
    head.appendChild(button);
    button.addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") === "ascending";
      Array.prototype.forEach.call(table.tHead.rows[0].cells, function (cell) { cell.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      var rows = Array.prototype.slice.call(body.rows).map(function (row, place) {
        var cell = row.cells[column], value = cell ? cell.getAttribute("data-v") : null;
        return { row: row, place: place, number: value === null ? NaN : Number(value), text: cell ? cell.textContent : "" };
      });
      rows.sort(function (a, b) {
        var empty = (a.text === "") - (b.text === "");
        if (empty) return empty;
        var order = isNaN(a.number) || isNaN(b.number) ? a.text.localeCompare(b.text) : a.number - b.number;
        return (down ? -order : order) || a.place - b.place;
      });
      rows.forEach(function (one) { body.appendChild(one.row); });
    });
  }
  function filterable(table) {
    if (table.tBodies[0].rows.length < 8) return;
    var input = document.createElement("input");
    input.type = "search";
    input.className = "filter";
    input.placeholder = "Filter: words that must appear";
    input.setAttribute("aria-label", "Filter cases");
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      Array.prototype.forEach.call(table.tBodies[0].rows, function (row) {
        var text = Array.prototype.map.call(row.cells, function (cell) { return cell.textContent; }).join(" ").toLowerCase();
        row.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
      });
    });
    table.parentNode.parentNode.insertBefore(input, table.parentNode);
  }
  Array.prototype.forEach.call(document.querySelectorAll("table.cases"), function (table) {
    try {
      for (var i = 0; i < table.tHead.rows[0].cells.length; ++i) sortable(table, i);
      filterable(table);
    } catch (ignored) { /* the table stands as it is */ }
  });
})();
)js";

}  // namespace harness
