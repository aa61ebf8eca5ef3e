"""Extract commands and links from README and docs/."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SHELL = ("", "sh", "bash", "shell", "console")
# A line of a code block is a command if it begins with one of these programs, or with a prompt.
_PROGRAMS = re.compile(
    r"(share-coordinator|make|docker|docker-compose|curl|kafka-[a-z-]+\.sh|kubectl|pip|openssl|keytool|promtool"
    r"|systemctl|python3?)(?= |$)"
)
_CONTINUED = re.compile(r"\\\n\s*")
# The remark at the end of a command line: text after "#" or several spaces.
_REMARK = re.compile(r"(   +|\s+# ).*$")


class Command(NamedTuple):
    """A command as a user types it, or its mention within a sentence."""

    page: str
    text: str
    is_mention: bool = False


def list_commands() -> Iterator[Command]:
    """Yield every command of every page, including those within sentences."""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        text = page.read_text("utf-8")
        for language, block in _FENCE.findall(text):
            if language in _SHELL:
                for line in _CONTINUED.sub(" ", block).splitlines():
                    if line.startswith("$ ") or _PROGRAMS.match(line):
                        yield Command(name, _strip_markup(line.removeprefix("$ ")))
        for span in _SPAN.findall(_FENCE.sub("", text)):
            if _PROGRAMS.match(span) and " " in span:
                yield Command(name, _strip_markup(span), is_mention=True)


def _strip_markup(line: str) -> str:
    return " ".join(_REMARK.sub("", line).split())


def list_links() -> Iterator[tuple[Path, str]]:
    """Yield every link of every page to a file of the repository."""
    for page in PAGES:
        for target in _LINK.findall(_FENCE.sub("", page.read_text("utf-8"))):
            if "://" not in target:
                yield page, target


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings in GitHub's form."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
