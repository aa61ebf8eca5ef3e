"""Add the READMEs of deploy/ to the site, and adapt links that leave docs/.

On the site, deploy/X/README.md is the page deploy/X.md. A link to any other file of the repository becomes
the path of that file as text, because a site without the repository cannot link to it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for each README of deploy/."""
    for readme in sorted(ROOT.glob("deploy/*/README.md")):
        source = readme.relative_to(ROOT).as_posix()
        page = File.generated(
            config, _find_site_page(source) or source, content=_adapt_links(readme.read_text("utf-8"), source)
        )
        files.append(page)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Adapt the links of a page of docs/."""
    if page.file.src_uri.startswith("deploy/"):
        return markdown
    return _adapt_links(markdown, f"docs/{page.file.src_uri}")


def _adapt_links(markdown: str, source: str) -> str:
    """Replace the links of a file of the repository by links between pages of the site."""

    def replace_link(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {target}, which does not exist")
        page = _find_site_page(path)
        if page is None:
            return f"{text} (`{path}`)"
        folder = posixpath.dirname(_find_site_page(source) or "")
        return f"[{text}]({posixpath.relpath(page, folder or '.')}{anchor})"

    return _LINK.sub(replace_link, markdown)


def _find_site_page(path: str) -> str | None:
    """Return the path of the page for a file of the repository, None if the site has no such page."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if match := re.fullmatch(r"deploy/(\w+)/README\.md", path):
        return f"deploy/{match[1]}.md"
    return None
