"""Render a report as one HTML page, without scripts and without fonts or images from other hosts."""

from collections.abc import Iterator
from html import escape

from coordinator.printable import escape_unprintable
from coordinator.recovery.report.content import FindingSection, ReportContent, format_place
from coordinator.recovery.report.plots import make_plots

# Maximum number of listed state partitions, largest first.
_PARTITIONS_MAX = 20

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2430; --soft: #566173; --line: #d8dee8;
  --panel: #f5f7fa; --blue: #2f6fb7; --green: #2d8a57; --amber: #b66d00; --red: #c02f3a; --grey: #8791a1; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e3e8ef; --soft: #9aa6b8; --line:
  #36404f;
  --panel: #1c222c; --blue: #6ba5e8; --green: #5cc08b; --amber: #e8a13c; --red: #f0707a; --grey: #8b97a8; }
  }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--paper); color:
  var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .4rem 0; }
.verdict { display: inline-block; padding: .2rem .7rem; border-radius: .4rem; font-weight: 600; color:
  var(--paper); }
.clean { background: var(--green); } .warning { background: var(--amber); } .critical { background:
  var(--red); }
.info { background: var(--grey); }
.soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
.wide { overflow-x: auto; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td { overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
code { font: .85rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
section.finding { background: var(--panel); border-left: .3rem solid var(--grey); border-radius: .3rem;
  padding: .7rem 1rem; margin: .8rem 0; }
section.finding.critical { border-color: var(--red); background: var(--panel); }
section.finding.warning { border-color: var(--amber); background: var(--panel); }
section.finding.info { background: var(--panel); }
section.finding h3 { margin: 0 0 .3rem; font-size: 1rem; }
.tag { font-size: .75rem; font-weight: 600; color: var(--paper); border-radius: .3rem; padding: .05rem
  .45rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1.25rem; }
figure { margin: 0; padding: .8rem; border: 1px solid var(--line); border-radius: .4rem; min-width: 0; }
figcaption { font-size: .85rem; color: var(--soft); margin-bottom: .3rem; }
figcaption b { color: var(--ink); display: block; }
svg { width: 100%; height: auto; }
@media (max-width: 30rem) { .plots { grid-template-columns: 1fr; } }
"""


def as_html(content: ReportContent) -> str:
    """Return the page."""
    return "\n".join(_page_html(content)) + "\n"


def _escape(said: str) -> str:
    return escape(escape_unprintable(said))


def _name(said: str) -> str:
    """Isolate a name chosen by a user, so that right-to-left text does not reorder the text around it."""
    return f"<bdi>{_escape(said)}</bdi>"


def _page_html(content: ReportContent) -> Iterator[str]:
    gravest = content.sections[0].severity.value if content.sections else "clean"
    if gravest in ("info", "clean"):
        gravest = "warning" if content.run.missed else "clean"
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_escape(content.title)}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{_escape(content.title)}</h1>"
    yield f'<p><span class="verdict {gravest}">{_escape(content.verdict)}</span></p>'
    yield f"<p>{_escape(content.answer[:1].upper() + content.answer[1:])}.</p>"
    yield '<div class="wide"><table>'
    for label, said in content.facts:
        yield f"<tr><th>{_escape(label)}</th><td>{_escape(said)}</td></tr>"
    yield "</table></div>"
    if content.groups:
        yield "<h2>Groups</h2>"
        yield '<div class="wide"><table><tr><th>group</th><th>status</th><th>what</th><th>next</th></tr>'
        for group in content.groups:
            yield (
                f"<tr><td>{_name(group.group_id)}</td><td>{group.status}</td><td>{_name(group.what)}</td>"
                f"<td><code>{_name(group.command)}</code></td></tr>"
            )
        yield "</table></div>"
    yield "<h2>Findings</h2>"
    if not content.sections:
        yield "<p>None.</p>"
    for section in content.sections:
        yield from _section_html(section)
    yield '<h2>Plots</h2><div class="plots">'
    for title, about, svg in make_plots(content.run):
        yield f"<figure><figcaption><b>{_escape(title)}</b>{_escape(about)}</figcaption>{svg}</figure>"
    yield "</div>"
    yield from _partitions_html(content)
    yield "<h2>Checks</h2>"
    yield f"<p>Passed: {_escape(content.passed_text)}.</p>"
    yield '<div class="wide"><table>'
    for check, why in content.run.not_checked.items():
        yield f"<tr><th>{_escape(check)}</th><td>not run: {_escape(why)}</td></tr>"
    yield "</table></div>"
    yield "</body></html>"


def _section_html(section: FindingSection) -> Iterator[str]:
    severity = section.severity.value
    count = (
        f"{section.total}"
        if section.total == len(section.rows)
        else f"{section.total} in {len(section.rows)}"
    )
    yield f'<section class="finding {severity}">'
    yield (
        f'<h3><span class="tag {severity}">{_escape(section.check.id)} {severity}</span> '
        f"{_escape(section.check.title)} <span class='soft'>({count})</span></h3>"
    )
    yield f"<p>{_escape(section.check.meaning)}</p>"
    yield f"<p><b>To do:</b> {_escape(section.check.advice)}</p>"
    yield '<div class="wide"><table><tr><th>where</th><th>evidence</th></tr>'
    for row in section.examples:
        yield f"<tr><td>{format_place(row, _name)}</td><td><code>{_name(row['evidence'])}</code></td></tr>"
    if len(section.rows) > len(section.examples):
        yield f"<tr><td>...</td><td>{len(section.rows) - len(section.examples)} more</td></tr>"
    yield "</table></div></section>"


def _partitions_html(content: ReportContent) -> Iterator[str]:
    largest = sorted(content.run.partitions, key=lambda each: -each.records)
    yield "<h2>State partitions</h2>"
    if len(largest) > _PARTITIONS_MAX:
        yield f"<p class='soft'>The {_PARTITIONS_MAX} with the most records, of {len(largest)}.</p>"
    heads = ("partition", "share-partitions", "records", "bytes", "start", "end", "can be pruned", "load, s")
    yield '<div class="wide"><table><tr>'
    yield "".join(f'<th class="n">{head}</th>' for head in heads)
    yield "<th>oldest snapshot in use</th></tr>"
    for each in largest[:_PARTITIONS_MAX]:
        numbers = (
            *(each.state_partition, each.share_partitions, each.records, each.bytes),
            *(each.start, each.end, each.prunable),
        )
        cells = "".join(f'<td class="n">{number:,}</td>' for number in numbers)
        yield f'<tr>{cells}<td class="n">{each.replay_s:.2f}</td><td>{_name(each.pinned_by)}</td></tr>'
    yield "</table></div>"
