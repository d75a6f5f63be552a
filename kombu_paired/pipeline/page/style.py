"""How the page of a report looks: on a phone, on a desk, on paper. Colours differ in lightness too."""

from __future__ import annotations

__all__ = ("COLOURS", "STYLE")

COLOURS = {
    "suspect": "#f2c14e",
    "failed_over": "#c8452f",
    "draining": "#5b8fd6",
    "backlog": "#2f5d9e",
    "good": "#2e7d4f",
    "bar": "#5577a8",
    "grid": "#d8dce2",
    "text": "#1d2430",
    "soft": "#5a6472",
}

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem 1rem 3rem; max-width: 62rem; background: #fff; color: #1d2430;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.1rem; font-weight: 600; color: #5a6472; margin: 0; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1.05rem; line-height: 1.3; margin: 0 0 .25rem; }
p { margin: .4rem 0; max-width: 44rem; }
.balance { font-size: clamp(1.5rem, 1rem + 2.6vw, 2.4rem); line-height: 1.2; font-weight: 700; margin: .5rem 0;
  max-width: none; }
.balance b { white-space: nowrap; font-weight: 700; }
.good { color: #24693f; } .bad { color: #a8321e; }
.soft, caption, figcaption { color: #5a6472; font-size: .9rem; }
table { border-collapse: collapse; width: 100%; margin: .75rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .25rem; }
th, td { padding: .3rem .5rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #d8dce2; }
th { font-weight: 600; } thead th { font-size: .85rem; color: #5a6472; vertical-align: bottom; }
.meaning { font-weight: 400; color: #5a6472; font-size: .9rem; }
.number { text-align: right; white-space: nowrap; padding: .3rem 0 .3rem .75rem; }
.bars { table-layout: fixed; }
.bars td.plot { width: 34%; padding-right: .75rem; }
.bars .number { width: 6.5rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit; fill: #1d2430; }
svg.bar { height: 1.1rem; }
.outages { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1rem;
  align-items: start; }
article { border: 1px solid #d8dce2; border-radius: .4rem; padding: .75rem .9rem; break-inside: avoid; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.2rem, 1fr)); gap: .35rem .75rem;
  margin: .5rem 0 0; }
dt { font-size: .8rem; color: #5a6472; line-height: 1.2; } dd { margin: 0; font-weight: 600; }
figure { margin: .75rem 0; max-width: 32rem; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .85rem; color: #5a6472; margin: .4rem 0; }
.legend svg { width: .85rem; height: .85rem; display: inline-block; margin-right: .35rem; vertical-align: -.1rem; }
.box { border: 2px solid #d8dce2; border-radius: .4rem; padding: .25rem 1rem .75rem; margin-top: 2.5rem; }
.box h2 { margin-top: .75rem; }
.advice { border-left: .3rem solid #2e7d4f; padding-left: .8rem; }
@media (max-width: 40rem) {
  .stack thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  .stack tr { display: block; border-bottom: 2px solid #d8dce2; padding: .4rem 0; }
  .stack th, .stack td { display: flex; justify-content: flex-end; gap: .75rem; border: 0; padding: .1rem 0;
    text-align: right; white-space: normal; }
  .stack th { display: block; text-align: left; }
  .stack td:empty { display: none; }
  .stack td::before { content: attr(data-label); color: #5a6472; margin-right: auto; }
  .bars thead { display: none; }
  .bars, .bars tbody, .bars caption { display: block; }
  .bars tr { display: grid; grid-template-columns: 1fr auto auto; padding: .4rem 0 .5rem;
    border-bottom: 1px solid #d8dce2; }
  .bars th, .bars td { border: 0; padding: 0; }
  .bars td.number { width: auto; padding-left: 1rem; }
  .bars td.plot { grid-row: 2; grid-column: 1 / -1; width: auto; padding: .15rem 0 0; }
  .bars svg.bar { height: .6rem; }
}
@media print {
  :root { font-size: 10pt; }
  body { max-width: none; padding: 0; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  h2, h3 { break-after: avoid; } tr, figure, dl { break-inside: avoid; }
  .outages { grid-template-columns: 1fr 1fr; }
}
"""
