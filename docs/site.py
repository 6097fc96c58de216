"""Hooks of MkDocs: the README is a page of the site, diagrams become pictures, and only links within the site stay.

A page has Mermaid's text, which GitHub draws; here it is drawn at the build, so that no page needs a script, and a
mistake in a diagram fails the build.
"""

from __future__ import annotations

import hashlib
import html
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mermaidx
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_DOCS = Path(__file__).resolve().parent
_README = _DOCS.parent / "README.md"
_START = "start.md"
# (Most who search want to do something; a word in a title counts a thousand times one in a text.)
_BOOST = {"formats": 0.001, "internals": 0.001}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have fences of Mermaid drawn."""
    fence = {"name": "mermaid", "class": "mermaid", "format": _drawn}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Make the README, which lies outside of ``docs``, the page `_START`."""
    text = re.sub(r"\]\((?!docs/|https?:|#)", "](../", _README.read_text()).replace("](docs/", "](")
    files.append(File.generated(config, _START, content=f"---\ntitle: Start\n---\n{text}"))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Take links to files of the repository that are not in the site out of a page; their texts stay.

    What a fence says to the tests behind its language, such as ``no-run``, goes too: MkDocs would take it for no fence.
    """
    markdown = re.sub(r"^(```[a-z]+) [a-z -]+$", r"\1", markdown, flags=re.MULTILINE)
    page.meta["search"] = {"boost": _BOOST.get(page.file.src_uri.split("/", maxsplit=1)[0], 1.0)}
    folder = (_DOCS / page.file.src_uri).parent

    def link(match: re.Match[str]) -> str:
        target = (folder / match["path"]).resolve()
        if target == _README:
            return f"[{match['text']}]({os.path.relpath(_DOCS / _START, folder)}{match['anchor'] or ''})"
        return match["text"] if target.exists() and not target.is_relative_to(_DOCS) else match[0]

    return re.sub(r"\[(?P<text>[^]]+)\]\((?P<path>\.\.[^)#:]*)(?P<anchor>#[^)]*)?\)", link, markdown)


def _drawn(source: str, *_: Any, **__: Any) -> str:
    svg = mermaidx.render(source).svg()
    (name,) = set(re.findall(r'<svg [^>]*?\bid="([^"]+)"', svg)[:1])
    own = "diagram-" + hashlib.sha256(source.encode()).hexdigest()[:12]  # (a page may have several)
    return (
        f'<figure role="img" aria-label="{html.escape(source.strip(), quote=True)}">{svg.replace(name, own)}</figure>'
    )
