"""Hooks of MkDocs: diagrams become pictures when the site is built, and only links within the site stay links.

A page has Mermaid's text, which GitHub draws; here it is drawn at the build, so that no page needs a script, and a
mistake in a diagram fails the build.
"""

from __future__ import annotations

import hashlib
import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mermaidx

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

_DOCS = Path(__file__).resolve().parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have fences of Mermaid drawn."""
    fence = {"name": "mermaid", "class": "mermaid", "format": _drawn}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Take links to files of the repository that are not in the site out of a page; their texts stay.

    What a fence says to the tests behind its language, such as ``no-run``, goes too: MkDocs would take it for no fence.
    """
    markdown = re.sub(r"^(```[a-z]+) [a-z -]+$", r"\1", markdown, flags=re.MULTILINE)
    folder = (_DOCS / page.file.src_uri).parent

    def link(match: re.Match[str]) -> str:
        target = (folder / match["path"]).resolve()
        return match["text"] if target.exists() and not target.is_relative_to(_DOCS) else match[0]

    return re.sub(r"\[(?P<text>[^]]+)\]\((?P<path>\.\.[^)#:]*)(#[^)]*)?\)", link, markdown)


def _drawn(source: str, *_: Any, **__: Any) -> str:
    svg = mermaidx.render(source).svg()
    (name,) = set(re.findall(r'<svg [^>]*?\bid="([^"]+)"', svg)[:1])
    own = "diagram-" + hashlib.sha256(source.encode()).hexdigest()[:12]  # (a page may have several)
    return (
        f'<figure role="img" aria-label="{html.escape(source.strip(), quote=True)}">{svg.replace(name, own)}</figure>'
    )
