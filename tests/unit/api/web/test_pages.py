"""The pages as they come: every link leads somewhere, nothing in a file or a name becomes a part of a page."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

import pytest

from .conftest import IMAGE, SCRIPT, grow


class Reader(HTMLParser):
    """Notes what a page would run, and what it is made of."""

    def __init__(self):
        super().__init__()
        self.inline: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        names = dict(attrs)
        bad = [name for name in names if name.startswith("on") or name in ("style", "srcdoc") or "hx-on" in name]
        if bad or (tag == "script" and "src" not in names) or tag in ("style", "iframe", "object", "embed", "base"):
            self.inline.append(f"{tag} {bad}")


def pages(site):
    """Pages that links lead to from the timeline, and from the pages there: of what differs in its state alone, two."""
    seen, waiting, alike = {}, [f"{site.access.base}/"], {}
    while waiting:
        address = waiting.pop()
        kind = re.sub(r"[0-9a-f]{24}|nothing|now|%40|@|number=[0-9]+|cursor=[^&]*|&?down_to=[^&]*", "", address)
        if address in seen or "/live" in address or alike.get(kind, 0) == 2:
            continue
        alike[kind] = alike.get(kind, 0) + 1
        seen[address] = answer = site.get(address)
        if answer.headers["content-type"].startswith("text/html"):
            waiting += site.links(answer.text)
        assert len(seen) < 400, "pages without an end"
    return seen


def test_every_link_leads_to_a_page_and_nothing_in_a_page_would_run(site):
    def everything():
        times = {path: path.lstat().st_mtime_ns for path in site.tree.rglob("*")}
        return times, site.workspace.history_revision()

    before = everything()
    found = pages(site)
    assert everything() == before, "nothing is changed by looking"
    refused = {address for address, answer in found.items() if answer.status_code == 409}
    assert all("/act/forget" in address for address in refused), "a fork stands on it"
    assert {answer.status_code for answer in found.values()} <= {200, 409}
    kinds = {address.removeprefix(site.access.base).split("/")[1].partition("?")[0] for address in found}
    assert kinds >= {"", "rows", "state", "diff", "raw", "static", "act"}
    for address, answer in found.items():
        assert address.startswith(f"{site.access.base}/"), "no page leads to another host"
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        reader = Reader()
        reader.feed(answer.text)
        assert not reader.inline, (address, reader.inline)
        assert SCRIPT not in answer.text
        assert "<b>" not in answer.text
        assert "<i>" not in answer.text


def test_the_timeline_says_what_happened_newest_first(site):
    text = site.text("")
    kinds = [part.partition("<")[0] for part in text.split('<span class="kind">')[1:]]
    assert kinds == ["undo", "checkpoint", "merge", "run", "prompt", "checkpoint"]
    assert text.count("you are here") == 1
    here = text[text.index('class="row kind-merge') :]
    assert "you are here" in here[: here.index("</li>")]
    assert text.count('class="mark ahead-mark"') == 1
    assert "merged attempt" in text
    assert "fork attempt" in text
    assert "<h2>" in text


def names(text):
    return [part.partition('"')[0] for part in text.split('data-name="')[1:]]


def test_a_page_of_rows_leads_to_the_next_one(growing):
    grow(growing, 13)
    seen, address = [], ""
    while address is not None:
        text = growing.text(address, hx_request="true")
        seen += names(text)
        address = next((one for one in growing.links(text) if "cursor=" in one), None)
    assert seen == [item.name for item in growing.workspace.log_rows(steps=True)]
    assert len(seen) == 14


def test_what_happens_comes_at_the_beginning_of_the_same_rows(growing):
    grow(growing, 7)
    text = growing.text("")
    before = names(text)
    refresh = next(one for one in growing.links(text) if "down_to=" in one)
    (growing.tree / "n").write_text("new")
    made = growing.workspace.checkpoint("new").checkpoint
    answer = growing.get(refresh, hx_request="true")
    assert names(answer.text) == [made.id, *before]
    assert "<html" not in answer.text
    assert "further" not in answer.text, "what follows is on the page already"
    assert "HX-Refresh" not in answer.headers


def test_so_much_that_the_rows_would_not_follow_each_other_begins_the_page_anew(growing):
    grow(growing, 7)
    refresh = next(one for one in growing.links(growing.text("")) if "down_to=" in one)
    grow(growing, 20)
    assert growing.get(refresh, hx_request="true").headers["HX-Refresh"] == "true"


def test_filters_find_rows(site):
    def names(query):
        return [part.partition("<")[0] for part in site.text(query).split('<span class="kind">')[1:]]

    assert names("?author=claude") == ["prompt"]
    assert names("?kind=merge") == ["merge"]
    assert names("?text=later") == ["checkpoint"]
    assert "checkpoint" in names("?path=src/cart.py")
    assert "merge" not in names("?path=src/cart.py")
    assert names("?path=%FF.txt") == ["checkpoint"]
    assert names("?since=2999-01-01") == []
    assert "Nothing fits these filters." in site.text("?author=nobody")


@pytest.mark.parametrize(
    "query", ["?kind=other", "?since=yesterday", "rows?cursor=x", "rows?lanes=../x", "rows?lanes=" + "a," * 20]
)
def test_a_filter_that_cannot_be_read_is_said(site, query):
    answer = site.get(query)
    assert answer.status_code == 400
    assert "<h1>" in answer.text


def test_a_directory_and_a_file_of_a_state(site):
    text = site.text("state/First%20%26%20%3Cb%3E")
    assert "First &amp; &lt;b&gt;" in text
    assert 'class="directory"' in text
    assert "src</bdi>" in text
    assert r"\xff.txt" in text
    source = site.text("state/changed?path=src/cart.py")
    assert '<span class="tk">def</span>' in source
    assert 'id="L2"' in source
    assert "not UTF-8" in site.text("state/changed?path=%FF.txt")
    assert "/etc/passwd" in site.text("state/changed?path=out")
    assert "A binary file of 100 B" in site.text("state/changed?path=blob")
    page = re.sub("<[^>]*>", "", site.text("state/changed?path=%3Cscript%3Ealert(1).html"))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_who_changed_each_line_and_for_which_prompt(growing):
    lines = "".join(f"line {number}\n" for number in range(5))
    (growing.tree / "n").write_text(lines)
    growing.workspace.checkpoint("by hand", author="ann")
    asked = growing.workspace.prompt(f"Change the third {SCRIPT}\nand nothing else", author="claude").prompt
    growing.workspace.run(["sed", "-i", "s/line 2/changed/", "n"], directory=bytes(growing.tree))
    plain = growing.text("state/@?path=n")
    text = growing.text(next(one for one in growing.links(plain) if "lines=yes" in one))
    assert SCRIPT not in text
    said = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", unescape(text)))
    assert "step 1" in said
    assert "1 line of it sed -i s/line 2/changed/ n after the prompt “Change the third" in said
    assert "alert(1) …” Go back to before it" in said, "the prompt has more lines"
    assert "ann 4 lines of it by hand" in said
    assert re.findall(r'<td class="who first"><a href="#origin-(\d)">', text) == ["2", "1", "2"]
    address = f"{growing.access.base}/act/undo?to={asked}"
    assert address in growing.links(text)
    assert address in growing.links(growing.text("")), "the row of the prompt leads there as well"
    assert f"Undo all since before prompt:{asked}" in growing.text(address)
    assert "lines=yes" not in growing.text("state/@?path=n&lines=yes")


def test_where_there_is_no_page_there_is_a_way_back(site):
    for page in ("nothing", "state", "run/x/y"):
        answer = site.get(page)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "There is no such page." in answer.text
        assert f'href="{site.access.base}/"' in answer.text


@pytest.mark.parametrize("page", ["state/nowhere", "state/@?path=nowhere", "raw/@?path=../x", "raw/nowhere?path=x"])
def test_what_is_not_there_is_said(site, page):
    answer = site.get(page)
    assert answer.status_code == 404
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "..%2f..%2fetc/passwd", "src/../../x", "%2e%2e/x", "out", "x%00y", "." * 300]
)
def test_no_path_leads_out_of_the_tree(site, path):
    answer = site.get(f"raw/now?path={path}")
    assert answer.status_code in (400, 404)
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "name", ["../access.py", "..%2f..%2faccess.py", "vendor/../../pages.py", "/etc/passwd", "style.css%00"]
)
def test_only_the_known_files_are_given(site, name):
    assert site.get(f"static/x/{name}").status_code in (404, 400)


def test_a_file_as_it_is_can_do_nothing(site):
    kinds = {}
    for path in ("drawing.svg", "logo.png", "blob", "src/cart.py", "%3Cscript%3Ealert(1).html"):
        for state in ("now", "changed"):
            answer = site.get(f"raw/{state}?path={path}")
            kinds[path] = answer.headers["content-type"]
            assert answer.headers["content-security-policy"].endswith("sandbox")
            assert answer.headers["x-content-type-options"] == "nosniff"
    assert kinds == {
        "drawing.svg": "image/svg+xml",
        "logo.png": "image/png",
        "blob": "application/octet-stream",
        "src/cart.py": "text/plain; charset=utf-8",
        "%3Cscript%3Ealert(1).html": "text/plain; charset=utf-8",
    }
    assert site.get("raw/now?path=blob").headers["content-disposition"] == "attachment"
    assert site.get("raw/changed?path=logo.png").content == IMAGE


def test_a_difference_shows_words_images_and_what_cannot_be_shown(site):
    text = site.text("diff?from=First%20%26%20%3Cb%3E&to=changed")
    assert "<mark>price</mark>" in text
    assert "<mark>cost</mark>" in text
    assert 'class="diff split"' in text
    assert 'class="diff unified"' in site.text("diff?from=First%20%26%20%3Cb%3E&to=changed&view=unified")
    later = site.text("diff?from=changed&to=later")
    assert "src/cart.py</bdi> → <bdi>src/basket.py" in later
    assert "data-slider" in later
    assert "A binary file." in later
    assert "more changed lines" in later


def test_the_difference_from_nothing_is_all_that_a_state_holds(site):
    text = site.text("diff?from=nothing&to=later")
    assert "numbers</bdi>" in text
    assert "/raw/nothing" not in text
    assert site.get("diff?from=now&to=later").status_code == 404
    assert site.get("diff?from=later&to=nothing").status_code == 404
    assert site.get("diff?from=nothing&to=now").status_code == 404


def test_many_files_that_came_and_went_show_before_renames_are_found(site, monkeypatch):
    monkeypatch.setattr("holdfast.api.web.diff_page._MOST_CANDIDATES", 0)
    text = site.text("diff?from=changed&to=later")
    assert "src/cart.py</bdi> → " not in text
    found = site.text(next(one for one in site.links(text) if "renames=yes" in one), hx_request="true")
    assert "src/cart.py</bdi> → <bdi>src/basket.py" in found
    assert "renames=yes" in next(one for one in site.links(found) if "all=yes" in one)


def test_a_long_difference_is_folded_until_it_is_asked_for(site):
    later = site.text("diff?from=changed&to=later")
    address = next(one for one in site.links(later) if "all=yes" in one and "numbers" in one)
    assert later.count(">1998<") == 0
    whole = site.text(address, hx_request="true")
    assert ">1998<" in whole
    assert "<html" not in whole
    assert "<html" in site.text(address), "without JavaScript it is a page of its own"


def test_the_difference_to_the_tree_keeps_to_what_it_was(growing):
    (growing.tree / "n").write_text("".join(f"{number}\n" for number in range(2000)))
    (growing.tree / "new").write_text("1\n")
    text = growing.text("diff")
    assert "the tree as it is" in text
    assert "new</bdi>" in text
    address = next(one for one in growing.links(text) if "all=yes" in one)
    assert ">1998<" in growing.text(address, hx_request="true")
    (growing.tree / "n").write_text("other\n")
    assert "changed while" in growing.text(address, hx_request="true")


def test_a_fault_of_ours_shows_no_details(site, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr("holdfast.api.web.pages.state", fail)
    answer = site.get("state/@")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "secret" in caplog.text
    caplog.clear()
