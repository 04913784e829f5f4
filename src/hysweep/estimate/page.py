"""The estimate as one page that needs nothing else: stacked bars in SVG, and the same numbers as tables."""

from __future__ import annotations

from html import escape

from hysweep.estimate.memory import PARTS
from hysweep.estimate.result import PHASES, Estimate, StageUse

# Colours of the parts by day and by night: neighbours are told apart with any colour vision (Okabe and Ito's, and
# lighter ones of the same hue), and each has its words in the legend, its tooltip and the table.
COLOURS = {
    "weights": ("#0072b2", "#4ea8e6"),
    "gradients": ("#56b4e9", "#9cd8f7"),
    "optimizer": ("#004a75", "#2b7fb5"),
    "other models": ("#7a4a2b", "#c79a7b"),
    "saved activations": ("#e69f00", "#ffc34d"),
    "working set": ("#d55e00", "#ff8f4c"),
    "logits": ("#b5488f", "#e58ac6"),
    "buffers": ("#8f8f00", "#d6d65c"),
    "calibration": ("#444444", "#bbbbbb"),
    "outside torch": ("#8a929c", "#6f7985"),
    "sleeping engine": ("#b9c0c9", "#4b545f"),
    "engine weights": ("#009e73", "#35c79f"),
    "engine working set": ("#005f45", "#1e8a6b"),
    "KV cache": ("#7fd4bb", "#9be8d2"),
    "engine overhead": ("#b9c0c9", "#4b545f"),
}
WIDTH, LEFT, RIGHT, BAR, GAP = 960, 230, 70, 22, 10

STYLE = """
:root { color-scheme: light dark; --page: #f7f7f5; --text: #1c2127; --soft: #5b6470; --line: #d9dbd5; --bad: #b3332b; }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
svg { width: 100%; height: auto; } svg text { fill: var(--text); font-size: 13px; } svg .soft { fill: var(--soft); }
svg line { stroke: var(--line); } svg line.card { stroke: var(--bad); stroke-width: 2; stroke-dasharray: 5 3; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 1.5rem; }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; } tr.sum > * { font-weight: 600; }
ul.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; padding: 0; font-size: .9rem; }
ul.legend i { display: inline-block; width: .9em; height: .9em; margin-right: .4em; vertical-align: -.1em; }
.bad { color: var(--bad); font-weight: 600; }
@media (prefers-color-scheme: dark) {
  :root { --page: #101317; --text: #e7e9ec; --soft: #9aa3ae; --line: #2a3038; --bad: #f0847b; }
}
"""


def page(estimate: Estimate, title: str) -> str:
    """A whole HTML document. The title may be anything: it is escaped."""
    used = [part for part in PARTS if any(part in u.parts for u in estimate.uses)]
    verdicts = "".join(
        f"<li>{escape(v.group)}: <span{'' if v.fits else ' class=bad'}>{'fits' if v.fits else 'does not fit'}</span>, "
        f"{v.margin_gib:+.1f} GiB ({escape(v.why)})</li>"
        for v in estimate.verdicts
    )
    legend = "".join(f'<li><i class="p{PARTS.index(part)}"></i>{escape(part)}</li>' for part in used)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{_colours()}</style></head><body>"
        f"<h1>{escape(title)}</h1><ul>{verdicts}</ul>"
        f'{_bars(estimate, title)}<ul class="legend">{legend}</ul>'
        f"{''.join(_table(estimate, phase) for phase in estimate.phases)}</body></html>\n"
    )


def _colours() -> str:
    light = "".join(f".p{i}{{fill:{c};background:{c}}}" for i, c in _each(0))
    dark = "".join(f".p{i}{{fill:{c};background:{c}}}" for i, c in _each(1))
    return f"{light}@media (prefers-color-scheme: dark){{{dark}}}"


def _each(of: int) -> list[tuple[int, str]]:
    return [(i, COLOURS[part][of]) for i, part in enumerate(PARTS)]


def _bars(estimate: Estimate, title: str) -> str:
    most = max(estimate.gpu_memory_gib, estimate.tightest.total_gib) * 1.02
    scale = (WIDTH - LEFT - RIGHT) / most
    shapes, y = [], 28
    for phase in estimate.phases:
        for use in (u for u in estimate.uses if u.phase == phase):
            shapes.append(_bar(use, y, scale))
            y += BAR + 4
        y += GAP
    card = LEFT + estimate.gpu_memory_gib * scale
    ticks = "".join(
        f'<line x1="{LEFT + g * scale:.1f}" x2="{LEFT + g * scale:.1f}" y1="22" y2="{y}"/>'
        f'<text class="soft" x="{LEFT + g * scale:.1f}" y="16" text-anchor="middle">{g}</text>'
        for g in range(0, int(most), 20)
        if abs(g - estimate.gpu_memory_gib) * scale > 30
    )
    limit = (
        f'<line class="card" x1="{card:.1f}" x2="{card:.1f}" y1="22" y2="{y}"/>'
        f'<text x="{card:.1f}" y="16" text-anchor="middle">{estimate.gpu_memory_gib:g} GiB</text>'
    )
    told = "; ".join(
        f"{PHASES[u.phase]}{'' if u.stage == 'all' else f', {u.stage} stage'} {u.total_gib:.1f}" for u in estimate.uses
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {y + 4}" role="img" aria-labelledby="t d"><title id="t">{escape(title)}</title>'
        f'<desc id="d">GiB of one {escape(estimate.gpu)} by phase and pipeline stage, stacked by part; the GPU has '
        f"{estimate.gpu_memory_gib:g}. {escape(told)}. The tables below have every number.</desc>"
        f"{ticks}{''.join(shapes)}{limit}</svg>"
    )


def _bar(use: StageUse, y: int, scale: float) -> str:
    name = PHASES[use.phase] + ("" if use.stage == "all" else f", {use.stage}")
    x, pieces = float(LEFT), []
    for part, gib in use.parts.items():
        if gib <= 0:  # a calibration below 1 makes the whole smaller; it has no length of its own
            continue
        pieces.append(
            f'<rect class="p{PARTS.index(part)}" x="{x:.1f}" y="{y}" width="{gib * scale:.2f}" height="{BAR}">'
            f"<title>{escape(part)}: {gib:.1f} GiB</title></rect>"
        )
        x += gib * scale
    middle = y + BAR * 0.7
    return (
        f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>{"".join(pieces)}'
        f'<text x="{x + 5:.1f}" y="{middle:.0f}">{use.total_gib:.1f}</text>'
    )


def _table(estimate: Estimate, phase: str) -> str:
    uses = [u for u in estimate.uses if u.phase == phase]
    head = "".join(f'<th scope="col">{escape(u.stage)}</th>' for u in uses)
    rows = "".join(
        f'<tr><th scope="row">{escape(part)}</th>{"".join(f"<td>{u.parts.get(part, 0):.2f}</td>" for u in uses)}</tr>'
        for part in PARTS
        if any(part in u.parts for u in uses)
    )
    total = "".join(f"<td>{u.total_gib:.2f}</td>" for u in uses)
    torch = "".join(f"<td>{u.torch_gib:.2f}</td>" for u in uses)
    return (
        f'<div class="wide"><table><caption>{escape(PHASES[phase])}, GiB per GPU</caption><thead><tr><th scope="col">'
        f'part</th>{head}</tr></thead><tbody>{rows}<tr class="sum"><th scope="row">total</th>{total}</tr>'
        f'<tr><th scope="row">of it torch, at its peak</th>{torch}</tr></tbody></table></div>'
    )
