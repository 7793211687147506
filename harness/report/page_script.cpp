#include "harness/report/page_parts.h"

namespace harness {

// The page is complete without the script. Tables are then neither sortable nor searchable.
const char* const page_script = R"js(
(function () {
  "use strict";
  function all(selector, root) { return Array.prototype.slice.call((root || document).querySelectorAll(selector)); }
  function sortable(table, column) {
    var head = table.tHead.rows[0].cells[column], body = table.tBodies[0];
    var button = document.createElement("button");
    button.type = "button";
    while (head.firstChild) button.appendChild(head.firstChild);
    head.appendChild(button);
    button.addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") === "ascending";
      all("th", table.tHead).forEach(function (cell) { cell.removeAttribute("aria-sort"); });
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
  function words_of(element) {
    return all("td, b, summary", element).map(function (part) { return part.textContent; }).join(" ").toLowerCase();
  }
  function part_of(row) {
    var link = row.querySelector("a[href^='#unit-']");
    return link ? document.getElementById(decodeURIComponent(link.getAttribute("href").slice(1))) : null;
  }
  function filterable(table) {
    var units = table.classList.contains("units");
    if (!units && table.tBodies[0].rows.length < 8) return;
    var status = document.createElement("p"), input = document.createElement("input");
    input.type = "search";
    input.className = "filter";
    input.placeholder = units ? "Search units and their cases" : "Filter: words that must appear";
    input.setAttribute("aria-label", units ? "Search units and their cases" : "Filter " + table.parentNode.getAttribute("aria-label"));
    status.className = "hidden";
    status.setAttribute("role", "status");
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean), shown = 0;
      Array.prototype.forEach.call(table.tBodies[0].rows, function (row) {
        var part = units ? part_of(row) : null;
        var text = words_of(row) + (part ? " " + words_of(part) : "");
        row.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
        if (part) part.hidden = row.hidden;
        shown += !row.hidden;
      });
      status.textContent = shown + " of " + table.tBodies[0].rows.length + " rows shown";
    });
    table.parentNode.parentNode.insertBefore(input, table.parentNode);
    table.parentNode.parentNode.insertBefore(status, table.parentNode);
  }
  // A link to a folded part opens it.
  function follow() {
    var target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target || target.tagName !== "DETAILS") return;
    target.open = true;
    target.scrollIntoView();
  }
  // On paper the cases are unfolded; figures print if the reader opened them.
  var folded = [];
  window.addEventListener("beforeprint", function () {
    folded = all("details.unit:not([open])");
    folded.forEach(function (part) { part.open = true; });
  });
  window.addEventListener("afterprint", function () {
    folded.forEach(function (part) { part.open = false; });
    folded = [];
  });
  all("table.sortable").forEach(function (table) {
    try {
      for (var i = 0; i < table.tHead.rows[0].cells.length; ++i) sortable(table, i);
      filterable(table);
    } catch (ignored) { /* the table stays as it is */ }
  });
  window.addEventListener("hashchange", follow);
  follow();
})();
)js";

}  // namespace harness
