"""Render the runbook, to which alerts link: the section "Alerts" of docs/operations.md with its anchors.

The page has the release of the coordinator and needs no internet access.
"""

import re
from html import escape

RUNBOOK_PATH = "/runbook"

_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Runbook · Share coordinator</title>
<link rel="icon" href="/assets/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/assets/style.css">
<main>
<p class="crumbs"><a href="/">Share groups</a> /</p>
<h1>Alerts</h1>
"""
# Links of the page lead to other pages, which the coordinator does not serve, so only their text is kept.
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_CODE = re.compile(r"`([^`]+)`")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_ITALIC = re.compile(r"\*([^*]+)\*")


def render_runbook(operations: bytes) -> bytes:
    """Convert the section from Markdown to HTML: headings, paragraphs, tables and code as plain blocks."""
    section = operations.decode().partition("\n## Alerts\n")[2].partition("\n## ")[0]
    blocks = section[section.index("### ") :].strip().split("\n\n")
    return (_HEAD + "\n".join(map(_render_block, blocks)) + "\n</main>\n").encode()


def _render_block(block: str) -> str:
    if block.startswith("### "):
        name = escape(block.removeprefix("### "))
        return f'<h2 id="{name.lower()}">{name}</h2>'
    if block.startswith(("|", "```")):
        return f"<pre>{escape(block.strip('`').strip())}</pre>"
    text = _CODE.sub(r"<code>\1</code>", _LINK.sub(r"\1", escape(block)))
    return "<p>" + _ITALIC.sub(r"<i>\1</i>", _BOLD.sub(r"<b>\1</b>", text)) + "</p>"
