#include "harness/report/page_parts.h"

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
h1, h2, h3, p, dl, ul { margin: 0; }
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
h3 { font-size: 1rem; line-height: 1.3; margin: 1.25rem 0 .4rem; }
.note { color: var(--quiet); font-size: .875rem; margin: .6rem 0 1.2rem; max-width: 46rem; overflow-wrap: anywhere; }
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
td.name { overflow-wrap: anywhere; min-width: 12rem; }
td.long { white-space: normal; min-width: 16rem; max-width: 34rem; overflow-wrap: anywhere; color: var(--quiet); }
td.long:empty { min-width: 0; }
th button { all: unset; cursor: pointer; }
th button:hover { color: var(--text); }
th button:focus-visible, summary:focus-visible, input:focus-visible, .scroll:focus-visible, a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " \2191"; }
th[aria-sort=descending] button::after { content: " \2193"; }
.verdict { padding: .05rem .45rem; border-radius: .3rem; font-weight: 600; }
.verdict.pass { color: var(--good); background: var(--good-ground); }
.verdict.fail { color: var(--bad); background: var(--bad-ground); }
.verdict.skipped { color: var(--wait); background: var(--wait-ground); }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 1.25rem; align-items: start; margin-bottom: 1.5rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; overflow: hidden; min-width: 0; }
.drawing { display: block; background: #ffffff; padding: .75rem; }
.drawing img { display: block; width: 100%; height: auto; }
figcaption { padding: .75rem 1rem; font-size: .875rem; overflow-wrap: anywhere; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem 1.25rem; }
.card .facts { margin-top: 0; }
.card h3 { margin-top: 1.25rem; }
.card ul { padding-left: 1.2rem; }
.card details { margin-top: 1.25rem; }
.spark { display: block; overflow: visible; }
.spark polyline { fill: none; stroke: var(--link); stroke-width: 1.5; stroke-linejoin: round; }
.spark circle { fill: var(--link); }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.print-only { display: none; }
section > details { margin-top: .75rem; }
details.unit[open], details.group[open] { margin-bottom: 1.75rem; }
summary { cursor: pointer; font-weight: 600; }
.unit > summary, .group > summary { font-size: 1.1rem; margin-bottom: .5rem; overflow-wrap: anywhere; }
.fixed { font-size: .875rem; color: var(--quiet); margin-bottom: .6rem; }
.fixed b { color: var(--text); font-weight: 600; }
.filter { font: inherit; font-size: .875rem; color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: .4rem;
  padding: .35rem .6rem; margin-bottom: .6rem; width: min(100%, 22rem); }
details .scroll, details pre { margin-top: .5rem; }
#previous > * + * { margin-top: .6rem; }
pre { margin: 0; padding: 1rem; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; white-space: pre-wrap; }
@page { size: landscape; margin: 12mm; }
@media print {
  :root { --ground: #fff; --card: #fff; --text: #000; --quiet: #444; --line: #bbb; --good: #0a6b3d; --bad: #a8201a; --wait: #7a5200;
    --good-ground: #fff; --bad-ground: #fff; --wait-ground: #fff; --link: #000; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  .filter, .spark, #figures .note { display: none; }
  section { margin-top: 1.5rem; }
  .print-only { display: block; }
  details:not([open]) { display: none; }
  .scroll { overflow: visible; border: 0; }
  table { font-size: 7pt; }
  th, td, td.long, td.name { padding: .1rem .3rem; white-space: normal; min-width: 0; overflow-wrap: anywhere; }
  td.number, .verdict { overflow-wrap: normal; }
  thead { display: table-header-group; }
  figure, .failures li, tr, .card, dl div { break-inside: avoid; }
  h2, h3, summary { break-after: avoid; }
  .failures li, .reason { border: 1px solid var(--line); }
  .figures { grid-template-columns: 1fr 1fr; }
}
)css";

}  // namespace harness
