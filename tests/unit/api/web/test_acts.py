"""Acts by the page: each is planned, carried out once, refused in the engine's words, and can be taken back."""

from __future__ import annotations

import re
from html import unescape

import pytest

from holdfast.api.web.access import MOST_FORM_BYTES

from .conftest import AUTHORITY

ORIGIN = {"origin": f"http://{AUTHORITY}"}


class Form:
    """The form of an act, as a page has it."""

    def __init__(self, site, text):
        self.site = site
        form = re.search(r'<form class="confirm" method="post" action="([^"]*)">(.*?)</form>', text, re.DOTALL)
        assert form is not None
        self.address = unescape(form[1])
        self.fields = {
            unescape(name): unescape(value)
            for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form[2])
        }
        self.boxes = re.findall(
            r'<input type="checkbox" name="(part|file)" value="([^"]*)"( checked)?> ?([^<]*)', form[2]
        )
        self.button = '<button class="go' in form[2]

    def send(self, *chosen, **changed):
        pairs = [*(self.fields | changed).items(), *chosen]
        body = "&".join(f"{name}={value}" for name, value in pairs)
        return post(self.site, self.address, body)


def post(site, address, body, **headers):
    kind = {"content-type": "application/x-www-form-urlencoded"}
    return site.client.post(address, content=body, headers=ORIGIN | kind | headers, follow_redirects=False)


def form_of(site, page):
    return Form(site, site.text(page))


def done(site, answer):
    """What came of a form that was sent."""
    assert answer.status_code == 303, answer.text
    return unescape(site.text(answer.headers["location"]))


def lose(site):
    """Two states, the tree on the newer; the id of the older."""
    (site.tree / "kept").write_text("kept\n")
    lines = [f"line {number}\n" for number in range(40)]
    (site.tree / "long").write_text("".join(lines))
    first = site.workspace.checkpoint("both").checkpoint.id
    (site.tree / "kept").unlink()
    lines[2], lines[30] = "changed\n", "changed as well\n"
    (site.tree / "long").write_text("".join(lines))
    (site.tree / "new").write_text("new")
    site.workspace.checkpoint("fewer")
    return first


def test_a_restore_shows_what_it_would_do_and_then_does_it_and_says_how_to_take_it_back(growing):
    first = lose(growing)
    text = unescape(growing.text(f"act/restore?to={first}"))
    assert "2 files would be written, 1 would be deleted." in text
    assert "changed as well" in text
    assert not (growing.tree / "kept").exists(), "looking changes nothing"
    answer = Form(growing, text).send()
    assert (growing.tree / "kept").read_text() == "kept\n"
    assert not (growing.tree / "new").exists()
    said = done(growing, answer)
    assert "holdfast undo" in said
    assert 'class="button way-back"' in said
    back = form_of(growing, "act/undo")
    done(growing, back.send())
    assert not (growing.tree / "kept").exists()
    assert (growing.tree / "new").read_text() == "new"


def test_a_restore_of_one_path_leaves_the_others(growing):
    first = lose(growing)
    done(growing, form_of(growing, f"act/restore?to={first}&path=kept").send())
    assert (growing.tree / "kept").exists()
    assert (growing.tree / "new").exists()


def test_what_is_like_it_already_has_no_button(growing):
    assert not form_of(growing, "act/restore?to=first").button
    assert "nothing to change" in growing.text("act/restore?to=first")
    assert "nothing to restore" in growing.text("act/parts?to=first")


def test_only_the_chosen_lines_and_files_are_restored(growing):
    first = lose(growing)
    form = form_of(growing, f"act/parts?to={first}")
    hunks = [value for _, value, _, text in form.boxes if text.strip() == "Restore these lines"]
    files = [value for _, value, _, text in form.boxes if text.strip() == "Bring this file back"]
    assert len(hunks) == 2
    said = done(growing, form.send(("part", hunks[1]), ("part", files[0])))
    assert "Restored in part" in said
    lines = (growing.tree / "long").read_text().splitlines()
    assert (lines[2], lines[30]) == ("changed", "line 30")
    assert (growing.tree / "kept").exists()
    assert (growing.tree / "new").exists()


def test_all_of_a_file_is_chosen_by_one_box(growing):
    first = lose(growing)
    form = form_of(growing, f"act/parts?to={first}")
    whole = [value for name, value, *_ in form.boxes if name == "file"]
    done(growing, form.send(("file", whole[0])))
    assert "changed" not in (growing.tree / "long").read_text()
    assert not (growing.tree / "kept").exists()


def test_a_choice_that_is_no_longer_there_is_shown_anew_with_what_still_is(growing):
    first = lose(growing)
    form = form_of(growing, f"act/parts?to={first}")
    boxes = {text.strip(): value for name, value, _, text in form.boxes if name == "part"}
    (growing.tree / "long").write_text("other")
    answer = form.send(("part", boxes["Restore these lines"]), ("part", boxes["Bring this file back"]))
    assert answer.status_code == 409
    assert "have changed since" in answer.text
    assert (growing.tree / "long").read_text() == "other"
    again = Form(growing, answer.text)
    assert [value for _, value, checked, _ in again.boxes if checked] == [boxes["Bring this file back"]]
    assert form.send().status_code == 409, "nothing is chosen"
    done(growing, again.send(("part", boxes["Bring this file back"])))
    assert (growing.tree / "kept").exists()


def test_a_plan_that_has_changed_is_shown_anew(growing):
    first = lose(growing)
    form = form_of(growing, f"act/restore?to={first}")
    (growing.tree / "kept").write_text("written meanwhile")
    answer = form.send()
    assert answer.status_code == 409
    assert "Things have changed since you looked" in answer.text
    assert (growing.tree / "kept").read_text() == "written meanwhile"
    done(growing, Form(growing, answer.text).send())
    assert (growing.tree / "kept").read_text() == "kept\n"


def test_a_form_is_carried_out_once(growing):
    lose(growing)
    form = form_of(growing, "act/undo")
    first = form.send()
    events = growing.workspace.history_revision()
    second = form.send()
    assert second.headers["location"] == first.headers["location"]
    assert growing.workspace.history_revision() == events
    assert (growing.tree / "kept").exists()
    assert growing.text(first.headers["location"]) == growing.text(first.headers["location"])


def test_undo_and_redo_go_back_and_forth(growing):
    lose(growing)
    assert "Redo" in done(growing, form_of(growing, "act/undo").send())
    assert (growing.tree / "kept").exists()
    assert 'href="' + growing.access.base + '/act/redo"' in growing.text("")
    assert "Undo" in done(growing, form_of(growing, "act/redo").send())
    assert not (growing.tree / "kept").exists()


@pytest.mark.parametrize(
    ("page", "status"),
    [
        ("act/redo", 404),
        ("act/undo?count=99", 404),
        ("act/undo?run=none", 404),
        ("act/undo?step=x", 400),
        ("act/undo?step=1-999999999", 400),
        ("act/redo?run=x", 400),
        ("act/undo?force=perhaps", 400),
        ("act/restore?to=none", 404),
        ("act/restore?to=first&path=../x", 404),
        ("act/fork?directory=relative", 400),
        ("act/label?label=@x", 400),
        ("act/forget?of=none", 404),
        ("act/nothing", 404),
        ("done/nothing", 404),
    ],
)
def test_what_cannot_be_done_is_said(growing, page, status):
    answer = growing.get(page)
    assert answer.status_code == status, answer.text
    assert "Traceback" not in answer.text
    assert "<h1" in answer.text


def test_a_fork_goes_where_there_is_nothing(growing, tmp_path):
    asks = growing.text("act/fork?of=first")
    assert not Form(growing, asks).button
    where = tmp_path / "forked"
    form = form_of(growing, f"act/fork?of=first&directory={where}")
    assert form.button
    assert not where.exists()
    assert "Forked" in done(growing, form.send())
    assert (where / "n").read_text() == "0"
    assert growing.get(f"act/fork?of=first&directory={where}").status_code == 409
    inside = form_of(growing, f"act/fork?of=first&directory={growing.tree}/inside")
    assert "lies in the workspace" in done(growing, inside.send())


def test_a_label_is_added_to_a_state(growing):
    first = lose(growing)
    assert "would have the label" in growing.text(f"act/label?of={first}&label=good+one")
    done(growing, form_of(growing, f"act/label?of={first}&label=good+one").send())
    assert growing.workspace.resolve("good one") == first
    assert growing.workspace.show(first).checkpoint.labels == ("both", "good one")
    assert not form_of(growing, f"act/label?of={first}&label=both").button
    assert "has this label as well" in growing.text(f"act/label?of={first}&label=fewer")


def test_a_state_is_forgotten_and_that_cannot_be_undone(growing):
    first = lose(growing)
    text = growing.text(f"act/forget?of={first}")
    assert "cannot be undone" in text
    assert growing.workspace.resolve(first) == first
    assert "Forgot 1 checkpoint" in done(growing, Form(growing, text).send())
    assert growing.get(f"act/forget?of={first}").status_code == 404


def test_a_form_without_the_token_or_by_another_page_is_refused(growing):
    lose(growing)
    form = form_of(growing, "act/undo")
    body = "&".join(f"{name}={value}" for name, value in form.fields.items())
    bare = body.replace(growing.access.form_token, "x")
    kind = {"content-type": "application/x-www-form-urlencoded"}
    answers = [
        post(growing, form.address, bare),
        post(growing, form.address, ""),
        post(growing, form.address, b"form=%ff\xff&form="),
        post(growing, form.address, body, origin="http://evil.example"),
        post(growing, form.address, body, origin="null"),
        post(growing, form.address, body, **{"sec-fetch-site": "same-site"}),
        post(growing, form.address, body, **{"content-type": "text/plain"}),
        post(growing, form.address, body, **{"content-type": "multipart/form-data; boundary=x"}),
        post(growing, form.address, body, **{"x-holdfast-form": "wrong"}),
        growing.client.post(form.address, content=body, headers=kind),
    ]
    assert {answer.status_code for answer in answers} == {403}
    assert post(growing, form.address, body, cookie="").status_code == 401
    assert post(growing, form.address, body + "&x=" + "x" * MOST_FORM_BYTES).status_code == 413
    assert not (growing.tree / "kept").exists()
    done(growing, form.send())


@pytest.mark.parametrize("number", ["", "x" * 65])
def test_a_form_without_a_number_does_nothing(growing, number):
    lose(growing)
    assert form_of(growing, "act/undo").send(number=number).status_code == 400
    assert not (growing.tree / "kept").exists()


def test_names_and_contents_of_files_are_no_part_of_a_page(growing):
    script = "<script>alert(1)</script>"
    (growing.tree / script.replace("/", "")).write_text(script)
    state = growing.workspace.checkpoint("hostile").checkpoint.id
    for file in growing.tree.iterdir():
        file.unlink()
    for page in (f"act/restore?to={state}", f"act/parts?to={state}"):
        text = growing.text(page)
        assert "<script>" not in text
        assert "&lt;script&gt;" in text
    answer = form_of(growing, f"act/restore?to={state}").send()
    assert "<script>" not in growing.text(answer.headers["location"])
