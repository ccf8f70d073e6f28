"""The style sheet of a report: light and dark as the reader has it, on a screen and on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --card: #f5f6f8; --ink: #1c2128; --soft: #57606a; --line: #d5d9de;
  --blue: #1f6fb2; --blue-soft: #a9cbe6; --green: #1a7f4b; --amber: #b06a00; --red: #c0322b; --grey: #a7aeb7;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181d; --card: #1d232a; --ink: #e6e9ed; --soft: #9aa4af; --line: #363e47;
    --blue: #5aa9e6; --blue-soft: #2c5577; --green: #4cc38a; --amber: #e0a043; --red: #f2736b; --grey: #68727d;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 1100px; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 1.8rem 0 .3rem; }
p { margin: .2rem 0 .6rem; color: var(--soft); overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(132px, 1fr)); gap: .6rem;
  margin: 1.1rem 0; padding: 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .7rem; }
.card dt { color: var(--soft); font-size: .82rem; }
.card dd { margin: 0; font-size: 1.15rem; font-weight: 600; white-space: nowrap; }
.card dd.more { font-size: .82rem; font-weight: 400; color: var(--soft); white-space: normal; }
.note { border-left: 4px solid var(--amber); background: var(--card); padding: .5rem .8rem; margin: .5rem 0;
  overflow-wrap: anywhere; }
.note.bad { border-color: var(--red); }
svg { display: block; width: 100%; height: auto; stroke-linejoin: round; }
.pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(420px, 100%), 1fr)); gap: .6rem 1.2rem; }
figure { margin: 0; }
figure.scroll svg { min-width: 640px; }
figcaption { font-weight: 600; font-size: .9rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .22rem .9rem .22rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; }
td { white-space: nowrap; } td.text { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
summary { cursor: pointer; margin: .6rem 0; }
footer { margin-top: 2rem; color: var(--soft); font-size: .82rem; }
@media print { body { max-width: none; } figure, table { break-inside: avoid; } }
"""
