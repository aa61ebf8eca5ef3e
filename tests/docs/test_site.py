"""Test that the documentation builds as a site, with all pages in the navigation, and stays short."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.docs.pages import ROOT

# Words of docs/*.md as `wc -w` counts them.
WORDS_MAX = 28_000
PARTS = (
    *("Why", "Quickstart", "Observe", "Connect brokers", "Deploy", "Operate", "Capacity planning"),
    *("Troubleshooting by symptom", "Reference", "Glossary", "Internals"),
)


def test_site_builds_without_broken_links(tmp_path: Path) -> None:
    config = ROOT / "deploy/site/mkdocs.yml"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config), "--site-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(tmp_path).parent.as_posix() for path in tmp_path.rglob("index.html")}
    sources = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    readmes = {f"deploy/{path.parent.name}" for path in ROOT.glob("deploy/*/README.md")}
    assert pages == {".", *sources, *readmes}
    page = (tmp_path / "routing/index.html").read_text("utf-8")
    assert 'href="../deploy/haproxy/"' in page


def test_navigation_has_the_parts_of_the_documentation() -> None:
    parts = yaml.safe_load((ROOT / "deploy/site/mkdocs.yml").read_text("utf-8"))["nav"]
    assert tuple(name for part in parts for name in part) == PARTS


def test_pages_have_fewer_words_than_the_limit() -> None:
    words = {page.name: len(page.read_text("utf-8").split()) for page in (ROOT / "docs").rglob("*.md")}
    assert sum(words.values()) < WORDS_MAX, sorted(words.items(), key=lambda page: -page[1])[:5]
