"""The looks of the page of a sweep, and the few lines that find a run in all its pictures."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1a2230; --soft: #5d6878; --line: #dde2ea;
  --accent: #d9480f; --bad: #c92a2a;
  --q0: #ccd5e2; --q1: #b4c5dd; --q2: #97b3d9; --q3: #769fd3;
  --q4: #558ac9; --q5: #3a74ba; --q6: #245da4; --q7: #134787;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #11151c; --card: #1a202a; --ink: #e6ebf2; --soft: #97a3b4; --line: #2d3644;
    --accent: #ffa94d; --bad: #ff8787;
    --q0: #323d4f; --q1: #364a68; --q2: #3c5a84; --q3: #446ca1;
    --q4: #5080bd; --q5: #6496d4; --q6: #80aee6; --q7: #a5c8f5;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 36px 24px 64px; }
h1 { font-size: 28px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 0 0 2px; }
header p { margin: 0; overflow-wrap: anywhere; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; color: var(--soft); }
.note { color: var(--soft); font-size: 13px; margin: 0 0 12px; }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 20px 22px; margin-top: 20px;
}
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 22px; }
.tile {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 12px 18px; min-width: 108px; max-width: 100%;
}
.tile span, .tile small { display: block; color: var(--soft); font-size: 12px; }
.tile small { overflow-wrap: anywhere; }
.tile b { font-size: 24px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.tile:first-child b { color: var(--accent); }
.tile.bad b { color: var(--bad); }
.charts {
  display: grid; gap: 8px 18px;
  grid-template-columns: repeat(auto-fit, minmax(300px, 1fr));
}
figure { margin: 0; max-width: 560px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
svg .name { fill: var(--ink); font-size: 12.5px; font-weight: 600; }
svg .name.metric { fill: var(--accent); }
svg .halo { paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }
.axis { stroke: var(--soft); stroke-width: 1; }
.tick { stroke: var(--soft); stroke-width: 1; }
.grid { stroke: var(--line); stroke-width: 1; }
.bests { fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 4 4; }
path.run { fill: none; stroke-width: 1.6; stroke-opacity: 0.75; }
path.best { stroke: var(--accent); stroke-width: 3; stroke-opacity: 1; }
circle.run { stroke: var(--card); stroke-width: 1; }
circle.best { fill: var(--accent); r: 5.5px; }
path.q0 { stroke: var(--q0); } path.q1 { stroke: var(--q1); } path.q2 { stroke: var(--q2); }
path.q3 { stroke: var(--q3); } path.q4 { stroke: var(--q4); } path.q5 { stroke: var(--q5); }
path.q6 { stroke: var(--q6); } path.q7 { stroke: var(--q7); }
circle.q0 { fill: var(--q0); } circle.q1 { fill: var(--q1); } circle.q2 { fill: var(--q2); }
circle.q3 { fill: var(--q3); } circle.q4 { fill: var(--q4); } circle.q5 { fill: var(--q5); }
circle.q6 { fill: var(--q6); } circle.q7 { fill: var(--q7); }
.pointed .run { opacity: 0.15; }
.pointed .run.here { opacity: 1; }
.pointed path.here { stroke: var(--ink); stroke-width: 3.5; stroke-opacity: 1; }
.pointed circle.here { fill: var(--ink); r: 7px; }
tr.here td { background: var(--line); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; margin-top: 8px; }
th, td { text-align: left; padding: 6px 12px; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.word { white-space: nowrap; max-width: 200px; overflow: hidden; text-overflow: ellipsis; }
td:first-child { color: var(--soft); }
tr.first td { font-weight: 600; }
tr.first td:nth-child(2) { color: var(--accent); }
tbody tr:last-child td { border-bottom: 0; }
@media print { section { break-inside: avoid; } body { background: none; } }
"""

SCRIPT = """
(function () {
  var runs = {};
  document.querySelectorAll("[data-run]").forEach(function (one) {
    (runs[one.dataset.run] = runs[one.dataset.run] || []).push(one);
  });
  function mark(event, is_on) {
    var one = event.target.closest && event.target.closest("[data-run]");
    if (!one) { return; }
    document.body.classList.toggle("pointed", is_on);
    runs[one.dataset.run].forEach(function (other) { other.classList.toggle("here", is_on); });
  }
  document.addEventListener("mouseover", function (event) { mark(event, true); });
  document.addEventListener("mouseout", function (event) { mark(event, false); });
})();
"""
