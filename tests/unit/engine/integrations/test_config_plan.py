"""Configuring clients, on files that are there: what is written, what stays, and that it can be taken back."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from holdfast.engine.integrations import _config_files as config_files
from holdfast.engine.integrations._json_text import parse
from holdfast.engine.integrations.client import ClientTarget, is_our_call, sealed
from holdfast.engine.integrations.config_plan import carry_out, plan
from holdfast.engine.integrations.hook_call import CLIENTS
from holdfast.model.errors import NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.engine.integrations.client import Scope
    from holdfast.engine.integrations.config_plan import ConfigPlan

OURS = "/opt/tool/bin/holdfast"
GOLDEN = Path(__file__).with_name("golden")


class Desk(NamedTuple):
    """A directory, a user, and what configures clients for them."""

    project: Path
    user: Path
    home: Path

    def plan(
        self, client: str, *, remove: bool = False, scope: Scope = "project", environ: Mapping[str, str] | None = None
    ) -> ConfigPlan:
        root = self.project if scope == "project" else self.user
        place = ClientTarget(scope, str(root), environ or {}, (OURS,))
        return plan(client, place, home=bytes(self.home), remove=remove)

    def do(
        self, client: str, *, remove: bool = False, scope: Scope = "project", environ: Mapping[str, str] | None = None
    ) -> ConfigPlan:
        found = self.plan(client, remove=remove, scope=scope, environ=environ)
        carry_out(found)
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path / "project", tmp_path / "user", tmp_path / "home")
    made.project.mkdir()
    made.user.mkdir()
    return made


def tree(root: Path) -> dict[str, bytes]:
    """Every file below a directory, and what it holds; directories by their name alone."""
    return {
        str(path.relative_to(root)) + ("/" if path.is_dir() else ""): b"" if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
    }


def prepared(desk: Desk, client: str) -> Desk:
    shutil.copytree(GOLDEN / client / "before", desk.project, dirs_exist_ok=True)
    return desk


@pytest.mark.parametrize("client", CLIENTS)
def test_a_new_configuration_is_the_golden_one_and_leaves_nothing_when_it_is_taken_out(desk: Desk, client: str) -> None:
    desk.do(client)
    assert tree(desk.project) == tree(GOLDEN / client / "new")
    assert desk.plan(client).changes == []
    desk.do(client, remove=True)
    assert tree(desk.project) == {}
    assert desk.plan(client, remove=True).changes == []


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_there_stays_and_is_to_the_byte_what_it_was_afterwards(desk: Desk, client: str) -> None:
    before = tree(prepared(desk, client).project)
    desk.do(client)
    assert tree(desk.project) == tree(GOLDEN / client / "after")
    assert desk.plan(client).changes == []
    kept = {name: copy for name, copy in tree(desk.home / "integrations").items() if not name.endswith(".absent")}
    assert sorted(kept.values()) == sorted(content for name, content in before.items() if not name.endswith("/"))
    assert all((desk.home / "integrations" / name).stat().st_mode & 0o777 == 0o600 for name in kept)
    desk.do(client, remove=True)
    assert tree(desk.project) == before
    assert tree(desk.home / "integrations") == {}


@pytest.mark.parametrize("client", CLIENTS)
def test_every_hook_that_is_written_is_one_that_is_understood(desk: Desk, client: str) -> None:
    events = desk.plan(client).client.events
    desk.do(client)
    found = {
        event
        for path in desk.project.rglob("*.json")
        for event, groups in json.loads(path.read_text()).get("hooks", {}).items()
        for group in groups
        for handler in group.get("hooks", [group])
        if is_our_call(client, handler["command"]) and handler["command"].endswith(f" {event}")
    }
    plugins = "".join(path.read_text() for path in desk.project.rglob("*.js"))
    assert found | {event for event in events if f'tell("{event}"' in plugins} == set(events)


@pytest.mark.parametrize("wrong", ["1", "[1]"])
@pytest.mark.parametrize("client", [name for name in CLIENTS if (GOLDEN / name / "new").exists()])
def test_a_value_of_another_kind_wherever_it_stands_is_let_be_or_refused(desk: Desk, client: str, wrong: str) -> None:
    desk.do(client)
    ours = {path: path.read_text() for path in desk.project.rglob("*") if path.suffix in (".json", ".toml")}
    for path, text in ours.items():
        for other in _with_each_inner_value(text, wrong) if path.suffix == ".json" else [f"mcp_servers = {wrong}\n"]:
            path.write_text(other)
            for remove in (False, True):
                try:
                    desk.plan(client, remove=remove)
                except RefusedError as error:
                    assert error.code in ("in_the_way", "malformed", "cannot_edit"), other
                    assert remove or "add this" in (error.hint or "")
        path.write_text(text)


def _with_each_inner_value(text: str, wrong: str) -> Iterator[str]:
    """A text of JSON with each of its values in turn, the whole as well, replaced."""
    inner = [parse(text)]
    for node in inner:
        yield text[: node.start] + wrong + text[node.end :]
        inner += [element.value for element in node.elements or ()]


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("begin", ["before", "new"])
def test_what_has_changed_since_stays_when_our_part_is_taken_out(desk: Desk, begin: str) -> None:
    if begin == "before":
        prepared(desk, "gemini")
    desk.do("gemini")
    path = desk.project / ".gemini/settings.json"
    edited(path, '"mcpServers": {', '"added": [1], // since\n  "mcpServers": {')
    desk.do("gemini", remove=True)
    expected = (GOLDEN / "gemini/before/.gemini/settings.json").read_text() if begin == "before" else "{\n}\n"
    if begin == "before":
        assert path.read_text() == expected.replace('"mcpServers": {', '"added": [1], // since\n  "mcpServers": {')
    else:
        assert parse(path.read_text()).value == {"added": [1]}
        assert "// since" in path.read_text()


def test_a_hook_of_others_in_our_group_stays(desk: Desk) -> None:
    desk.do("claude")
    path = desk.project / ".claude/settings.json"
    value = json.loads(path.read_text())
    value["hooks"]["Stop"][0]["hooks"].insert(0, {"type": "command", "command": "say done"})
    path.write_text(json.dumps(value))
    assert [change for change in desk.plan("claude").changes if change.found.path.endswith(b"settings.json")] == []
    desk.do("claude", remove=True)
    assert json.loads(path.read_text()) == {
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}
    }


def test_what_an_older_one_has_written_is_replaced_and_what_the_user_added_is_kept(desk: Desk) -> None:
    desk.do("claude")
    for path in (desk.project / ".mcp.json", desk.project / ".claude/settings.json"):
        path.write_text(path.read_text().replace(OURS, "/old/place/holdfast"))
    edited(desk.project / ".mcp.json", '"args": [', '"env": {"A": "1"},\n      "args": [')
    settings = desk.project / ".claude/settings.json"
    edited(
        settings,
        '"UserPromptSubmit": [',
        '"Gone": [{"hooks": [{"type": "command", "command":'
        ' "/old/place/holdfast hook claude Gone"}]}],\n    "UserPromptSubmit": [',
    )
    desk.do("claude")
    server = json.loads((desk.project / ".mcp.json").read_text())["mcpServers"]["holdfast"]
    assert server == {"command": OURS, "args": ["mcp"], "env": {"A": "1"}}
    hooks = json.loads(settings.read_text())["hooks"]
    assert "/old/place" not in settings.read_text()
    assert hooks.pop("Gone") == []
    assert {len(groups) for groups in hooks.values()} == {1}
    assert desk.plan("claude").changes == []


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        ("/a/holdfast hook claude Stop", True),
        ("'/with space/holdfast' --home '/x y' hook claude Stop", True),
        ("/usr/bin/python3 -P -m holdfast hook claude Stop", True),
        ("/a/holdfast hook codex Stop", False),
        ("/a/other hook claude Stop", False),
        ("echo hook claude Stop", False),
        ("/a/holdfast hook claude Stop; rm -rf x", False),
        ("/a/holdfast --json -w '/x;y' hook claude Stop", True),
        ("./guard.sh && /usr/bin/holdfast hook claude PreToolUse", False),
        ("./guard.sh&&/a/holdfast hook claude Stop", False),
        ("cat x | /a/holdfast hook claude Stop", False),
        ("./guard.sh\n/a/holdfast hook claude Stop", False),
        ("/a/holdfast $(./guard.sh) hook claude Stop", False),
        ("/a/holdfast `./guard.sh` hook claude Stop", False),
        ("./guard.sh /a/holdfast hook claude Stop", False),
        ("GUARD=1 /a/holdfast hook claude Stop", False),
        ("/a/holdfast run -- ./guard.sh hook claude Stop", False),
        ("/a/holdfast run ./guard.sh hook claude Stop", False),
        ("hook claude Stop", False),
        ("unbalanced '", False),
        (None, False),
    ],
)
def test_only_what_calls_us_is_ours(command: object, ours: bool) -> None:
    assert is_our_call("claude", command) is ours


MALFORMED = [
    ("claude", ".mcp.json", b'{"mcpServers": {', "line 1, column 17"),
    ("claude", ".claude/settings.json", b"{'a': 1}", "line 1, column 2"),
    ("claude", ".mcp.json", b"\xff\xfe{\0}\0", "byte 0 is not UTF-8"),
    ("claude", ".mcp.json", b"[]", "mcpServers.holdfast has another type"),
    ("claude", ".mcp.json", b'{"mcpServers": []}', "mcpServers.holdfast has another type"),
    ("claude", ".claude/settings.json", b'{"hooks": {"Stop": {}}}', "hooks.Stop has another type"),
    ("codex", ".codex/config.toml", b"a = \n", "line 1"),
    ("codex", ".codex/config.toml", b'[mcp_servers.holdfast]\ncommand = "mine"\n', "was not written by Holdfast"),
    ("codex", ".codex/hooks.json", b"", ""),
    ("opencode", ".opencode/plugins/holdfast.js", b"mine\n", "was not written by Holdfast"),
]


@pytest.mark.parametrize(("client", "name", "content", "reason"), MALFORMED, ids=range(len(MALFORMED)))
def test_what_cannot_be_changed_without_harm_stops_all_of_it(
    desk: Desk, client: str, name: str, content: bytes, reason: str
) -> None:
    path = desk.project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    before = tree(desk.project)
    if not reason:  # an empty file is a configuration without anything in it
        desk.do(client)
        desk.do(client, remove=True)
    else:
        with pytest.raises(RefusedError) as raised:
            desk.plan(client)
        assert reason in raised.value.message
        assert name in raised.value.message
        assert raised.value.exit_code == 4
        assert raised.value.hint
        assert OURS in raised.value.hint or "out of the way" in raised.value.hint
    assert tree(desk.project) == before


def test_a_link_is_followed_and_stays_with_mode_and_owner(desk: Desk) -> None:
    dotfiles = desk.user / "dotfiles"
    dotfiles.mkdir()
    real = dotfiles / "claude.json"
    real.write_text('{"secret": 1}\n')
    real.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(real, 12345, 12346)
    (desk.user / ".claude.json").symlink_to("dotfiles/claude.json")
    desk.do("claude", scope="user")
    assert os.readlink(desk.user / ".claude.json") == "dotfiles/claude.json"
    assert real.stat().st_mode & 0o7777 == 0o640
    if os.geteuid() == 0:
        assert (real.stat().st_uid, real.stat().st_gid) == (12345, 12346)
    assert json.loads(real.read_text())["mcpServers"]["holdfast"]["command"] == OURS
    desk.do("claude", scope="user", remove=True)
    assert real.read_text() == '{"secret": 1}\n'
    assert sorted(path.name for path in dotfiles.iterdir()) == ["claude.json"]


def test_extended_attributes_and_access_control_lists_stay(desk: Desk) -> None:
    file = desk.project / ".mcp.json"
    file.write_text("{}")
    nobody = 0xFFFFFFFF
    entries = ((1, 6, nobody), (2, 4, 65534), (4, 4, nobody), (16, 4, nobody), (32, 0, nobody))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(file, "user.note", b"kept")
        os.setxattr(file, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"not on this file system: {error.strerror}")
    before = {name: os.getxattr(file, name) for name in os.listxattr(file)}
    mode = file.stat().st_mode
    desk.do("claude")
    assert b"holdfast" in file.read_bytes()
    assert {name: os.getxattr(file, name) for name in os.listxattr(file)} == before
    assert file.stat().st_mode == mode


@pytest.mark.parametrize("link", [".mcp.json", ".claude"])
def test_a_project_s_link_that_leads_out_of_it_is_not_followed(desk: Desk, link: str) -> None:
    """I7: whoever made the project must not choose which file of the user's is written to."""
    target = desk.user / ("settings" if link == ".claude" else "claude.json")
    if link == ".claude":
        target.mkdir()
    else:
        target.write_text("{}")
    (desk.project / link).symlink_to(target)
    with pytest.raises(RefusedError, match="leads out of the project"):
        desk.plan("claude")
    assert target.is_dir() or target.read_text() == "{}"


def test_what_has_several_names_or_is_no_file_is_left_alone(desk: Desk) -> None:
    path = desk.project / ".mcp.json"
    path.write_text("{}")
    os.link(path, desk.project / "other")
    with pytest.raises(RefusedError, match="several names"):
        desk.plan("claude")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RefusedError, match="no regular file"):
        desk.plan("claude")
    path.unlink()
    with path.open("wb") as file:
        file.truncate(config_files.MAX_BYTES + 1)
    with pytest.raises(RefusedError, match="that large"):
        desk.plan("claude")


@pytest.mark.parametrize("how", ["written", "disguised", "replaced", "appeared", "deleted"])
def test_an_edit_in_between_is_seen_and_not_overwritten(desk: Desk, how: str) -> None:
    path = desk.project / ".mcp.json"
    if how != "appeared":
        path.write_text('{"a": 1}')
    found = desk.plan("claude")
    if how == "replaced":
        path.with_name("new").write_text('{"a": 2}')
        path.with_name("new").rename(path)
    elif how == "deleted":
        path.unlink()
    else:
        times = path.stat() if how == "disguised" else None
        path.write_text('{"a": 2}')
        if times is not None:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    before = tree(desk.project)
    with pytest.raises(RefusedError) as raised:
        carry_out(found)
    assert raised.value.code == "changed_meanwhile"
    assert tree(desk.project) == before
    desk.do("claude")
    if how != "deleted":
        assert json.loads(path.read_text())["a"] == 2


def test_an_edit_in_between_is_not_deleted(desk: Desk) -> None:
    desk.do("opencode")
    plugin = desk.project / ".opencode/plugins/holdfast.js"
    found = desk.plan("opencode", remove=True)
    plugin.write_text(plugin.read_text() + "// mine\n")
    with pytest.raises(RefusedError, match="was not changed") as raised:
        carry_out(found)
    assert "opencode.json" in raised.value.message.partition("done already")[2]
    assert plugin.read_text().endswith("// mine\n")


def test_a_program_that_has_it_open_for_writing_is_not_cheated(desk: Desk) -> None:
    path = desk.project / ".mcp.json"
    path.write_text("{}")
    found = desk.plan("claude")
    with path.open("a"), pytest.raises(RefusedError, match="open for writing"):
        carry_out(found)
    assert path.read_text() == "{}"


def test_the_user_s_own_configuration_is_where_the_client_has_it(desk: Desk) -> None:
    for client in CLIENTS:
        desk.do(client, scope="user")
    names = [name for name in tree(desk.user) if not name.endswith("/")]
    assert sorted(names) == [
        ".claude.json",
        ".claude/settings.json",
        ".claude/skills/holdfast/.claude-plugin/plugin.json",
        ".claude/skills/holdfast/commands/log.md",
        ".claude/skills/holdfast/commands/undo.md",
        ".codex/config.toml",
        ".codex/hooks.json",
        ".config/opencode/opencode.json",
        ".config/opencode/plugins/holdfast.js",
        ".cursor/hooks.json",
        ".cursor/mcp.json",
        ".gemini/settings.json",
    ]
    for client in CLIENTS:
        desk.do(client, scope="user", remove=True)
    assert tree(desk.user) == {}


def test_a_client_s_own_variables_are_obeyed(desk: Desk) -> None:
    other = desk.user / "other"
    own = {"CLAUDE_CONFIG_DIR": str(other), "CODEX_HOME": str(other), "XDG_CONFIG_HOME": str(other)}
    for client in ("claude", "codex", "opencode"):
        desk.do(client, scope="user", environ=own)
    assert sorted(path.name for path in other.rglob("*") if path.is_file()) == [
        ".claude.json",
        "config.toml",
        "holdfast.js",
        "hooks.json",
        "log.md",
        "opencode.json",
        "plugin.json",
        "settings.json",
        "undo.md",
    ]
    assert tomllib.loads((other / "config.toml").read_text())["mcp_servers"]["holdfast"]["args"] == ["mcp"]


def test_an_unknown_client_is_none(desk: Desk) -> None:
    with pytest.raises(NotFoundError, match="no client"):
        desk.plan("emacs")


@pytest.mark.parametrize(
    "theirs",
    [
        {"command": "/opt/other/server", "args": ["--port", "1"], "env": {"TOKEN": "secret"}},
        {"url": "https://example.com/mcp"},
        {"command": "/opt/holdfast/other", "args": ["mcp"]},
        {"command": "holdfast"},
        ["holdfast", "mcp"],
        "holdfast mcp",
        {},
    ],
)
@pytest.mark.parametrize(("client", "name"), [("claude", ".mcp.json"), ("cursor", ".cursor/mcp.json")])
def test_a_server_of_our_name_that_is_not_ours_is_left_alone(
    desk: Desk, client: str, name: str, theirs: object
) -> None:
    file = desk.project / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"mcpServers": {"holdfast": theirs}}))
    before = tree(desk.project)
    with pytest.raises(RefusedError) as caught:
        desk.plan(client)
    assert caught.value.code == "in_the_way"
    assert "mcpServers.holdfast" in caught.value.message
    assert desk.do(client, remove=True).changes == []
    assert tree(desk.project) == before


def test_what_a_user_has_added_to_our_command_stays(desk: Desk) -> None:
    file = desk.project / ".mcp.json"
    theirs = {"command": "/old/bin/holdfast", "args": ["--home", "/old", "mcp", "--guard"], "env": {"A": "\ud800ä"}}
    file.write_text(json.dumps({"mcpServers": {"holdfast": theirs}}))
    desk.do("claude")
    wanted = {"command": OURS, "args": ["mcp", "--guard"], "env": {"A": "\ud800ä"}}
    assert json.loads(file.read_text()) == {"mcpServers": {"holdfast": wanted}}
    assert desk.plan("claude").changes == []
    desk.do("claude", remove=True)
    assert json.loads(file.read_text()) == {"mcpServers": {"holdfast": theirs}}


def test_what_a_user_has_added_to_our_one_list_of_words_stays(desk: Desk) -> None:
    file = desk.project / "opencode.json"
    theirs = {"type": "local", "command": ["holdfast", "mcp", "-w", "/shop"], "enabled": False}
    file.write_text(json.dumps({"mcp": {"holdfast": theirs}}))
    desk.do("opencode")
    wanted = theirs | {"command": [OURS, "mcp", "-w", "/shop"]}
    assert json.loads(file.read_text()) == {"mcp": {"holdfast": wanted}}


BY_HAND = """{
  // mine
  "mcpServers": {"holdfast": {
    "command": "holdfast", // from the PATH
    "args": ["mcp", "-w", "/home/you/shop"],
    /* and */ "env": {"A": "1"}
  }}
}
"""


@pytest.mark.parametrize("since", [False, True])
def test_a_server_that_was_written_by_hand_is_kept_and_restored(desk: Desk, since: bool) -> None:
    file = desk.project / ".mcp.json"
    file.write_text(BY_HAND)
    done = desk.do("claude")
    (change,) = [one for one in done.changes if one.found.path.endswith(b".mcp.json")]
    assert change.keeps
    assert Path(os.fsdecode(change.kept)).read_text() == BY_HAND
    assert file.read_text() == BY_HAND.replace('"command": "holdfast"', f'"command": "{OURS}"')
    assert desk.plan("claude").changes == []
    if since:
        edited(file, "// mine", "// still mine")
    desk.do("claude", remove=True)
    assert file.read_text() == BY_HAND.replace("// mine", "// still mine" if since else "// mine")


def test_what_a_person_has_written_to_call_us_is_kept_when_it_is_taken_out(desk: Desk) -> None:
    file = desk.project / ".mcp.json"
    file.write_text(BY_HAND)
    (change,) = desk.do("claude", remove=True).changes
    assert Path(os.fsdecode(change.kept)).read_text() == BY_HAND
    assert "holdfast" not in file.read_text()
    desk.do("claude")
    desk.do("claude", remove=True)
    assert Path(os.fsdecode(change.kept)).read_text() == BY_HAND


def test_a_hook_that_does_more_than_call_us_stays(desk: Desk) -> None:
    command = "./guard.sh && /usr/bin/holdfast hook claude PreToolUse"
    guard = {"matcher": "X", "hooks": [{"type": "command", "command": command}]}
    file = desk.project / ".claude/settings.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"hooks": {"PreToolUse": [guard]}}))
    before = tree(desk.project)
    desk.do("claude")
    found = json.loads(file.read_text())["hooks"]["PreToolUse"]
    assert found[0] == guard
    assert len(found) == 2
    desk.do("claude", remove=True)
    assert tree(desk.project) == before


def call(client: str, event: str) -> str:
    return f"{OURS} hook {client} {event}"


MIXED = [
    pytest.param(
        "cursor",
        ".cursor/hooks.json",
        "stop",
        [{"command": call("cursor", "stop"), "hooks": [{"command": call("cursor", "stop")}]}, {"command": "./mine.sh"}],
        [{"command": "./mine.sh"}],
        id="a call that is a group of our calls as well",
    ),
    pytest.param(
        "claude",
        ".claude/settings.json",
        "Stop",
        [{"type": "command", "command": call("claude", "Stop"), "hooks": [{"command": "./mine.sh"}]}],
        [{"hooks": [{"command": "./mine.sh"}]}],
        id="a call that is a group of others",
    ),
]


@pytest.mark.parametrize(("client", "name", "event", "items", "left"), MIXED)
def test_nothing_of_others_goes_with_a_call_of_ours(
    desk: Desk, client: str, name: str, event: str, items: list[object], left: list[object]
) -> None:
    file = desk.project / name
    file.parent.mkdir()
    text = json.dumps({"hooks": {event: [{"command": "./before.sh"}, *items, {"command": "./after.sh"}]}})
    file.write_text(text)
    desk.do(client, remove=True)
    found = json.loads(file.read_text())["hooks"][event]
    assert found == [{"command": "./before.sh"}, *left, {"command": "./after.sh"}]


def test_of_two_calls_of_ours_in_one_item_the_second_goes_when_we_are_put_in(desk: Desk) -> None:
    file = desk.project / ".cursor/hooks.json"
    file.parent.mkdir()
    ours, mine = {"command": call("cursor", "stop")}, {"command": "./mine.sh"}
    file.write_text(json.dumps({"version": 1, "hooks": {"stop": [{**ours, "hooks": [ours]}, mine]}}))
    desk.do("cursor")
    assert json.loads(file.read_text())["hooks"]["stop"] == [{**ours, "hooks": []}, mine]


def test_what_others_have_put_into_our_entries_is_kept_when_those_are_taken_out(desk: Desk) -> None:
    prepared(desk, "claude")
    before = (desk.project / ".mcp.json").read_text()
    desk.do("claude")
    path = desk.project / ".mcp.json"
    edited(path, '"args": [\n        "mcp"\n      ]', '"args": ["mcp"],\n      "env": {"TOKEN": "mine"}')
    changed = path.read_text()
    (change,) = [one for one in desk.do("claude", remove=True).changes if one.found.path.endswith(b".mcp.json")]
    assert "holdfast" not in path.read_text()
    assert Path(os.fsdecode(change.kept)).read_text() == changed
    copies = tree(desk.home / "integrations").values()
    assert before.encode() in copies or path.read_text() == before


@pytest.mark.parametrize("since", [False, True])
def test_the_copy_of_what_was_before_stays_until_the_file_is_that_again(desk: Desk, since: bool) -> None:
    file = desk.project / ".mcp.json"
    file.write_text('{"a": 1}\n')
    desk.do("claude")
    if since:
        edited(file, '"a": 1', '"a": 2')
    desk.do("claude", remove=True)
    assert json.loads(file.read_text()) == {"a": 2 if since else 1}
    copies = [copy for name, copy in tree(desk.home / "integrations").items() if name.endswith("-.mcp.json")]
    assert copies == ([b'{"a": 1}\n'] if since else [])


@pytest.mark.parametrize("remove", [False, True])
def test_a_directory_that_becomes_a_link_after_it_was_looked_at_leads_nowhere(desk: Desk, remove: bool) -> None:
    """I7: nor may whoever swaps a directory while the question is being asked."""
    outside = desk.user / "claude"
    if remove:
        desk.do("claude")
    else:
        (desk.project / ".claude").mkdir()
    found = desk.plan("claude", remove=remove)
    if remove:
        (desk.project / ".claude").rename(outside)
    else:
        (desk.project / ".claude").rmdir()
        outside.mkdir()
    (desk.project / ".claude").symlink_to(outside)
    before = tree(desk.user)
    with pytest.raises(RefusedError) as raised:
        carry_out(found)
    assert raised.value.code == "escape"
    assert str(desk.project / ".claude/settings.json") in raised.value.message
    assert tree(desk.user) == before


def test_a_directory_that_is_gone_since_it_was_looked_at_is_a_change(desk: Desk) -> None:
    desk.do("cursor")
    found = desk.plan("cursor", remove=True)
    shutil.rmtree(desk.project / ".cursor")
    with pytest.raises(RefusedError) as raised:
        carry_out(found)
    assert raised.value.code == "changed_meanwhile"


def test_a_command_that_the_user_has_changed_is_theirs(desk: Desk) -> None:
    desk.do("claude")
    plugin = desk.project / ".claude/skills/holdfast"
    edited(plugin / "commands/undo.md", "ask me whether to go on", "go on")
    theirs = (plugin / "commands/undo.md").read_text()
    assert desk.plan("claude").changes == []
    desk.do("claude", remove=True)
    assert [str(path.relative_to(desk.project)) for path in desk.project.rglob("*") if path.is_file()] == [
        ".claude/skills/holdfast/commands/undo.md"
    ]
    desk.do("claude")
    desk.do("claude", remove=True)
    assert (plugin / "commands/undo.md").read_text() == theirs


def test_a_command_of_another_version_of_ours_is_brought_up_to_date_and_removed(desk: Desk) -> None:
    command = desk.project / ".claude/skills/holdfast/commands/log.md"
    command.parent.mkdir(parents=True)
    command.write_text(sealed("---\n# an earlier text, seal:\n---\nDo it.\n"))
    desk.do("claude")
    assert command.read_text() == (GOLDEN / "claude/new" / command.relative_to(desk.project)).read_text()
    command.write_text(sealed("---\n# a later text, seal:\n---\nseal: it.\n"))
    desk.do("claude", remove=True)
    assert not command.exists()


def test_the_commands_call_the_program_that_wrote_them_wherever_claude_code_keeps_its_own(desk: Desk) -> None:
    found = plan(
        "claude",
        ClientTarget(
            "user", str(desk.user), {"CLAUDE_CONFIG_DIR": str(desk.user / "own")}, ("/a b/holdfast", "--home", "/'x")
        ),
        home=bytes(desk.home),
    )
    carry_out(found)
    text = (desk.user / "own/skills/holdfast/commands/undo.md").read_text()
    program = """'/a b/holdfast' --home '/'"'"'x'"""
    assert f"Run `{program} undo --dry-run $ARGUMENTS`" in text
    (allowed,) = (line.partition(": ")[2] for line in text.splitlines() if line.startswith("allowed-tools"))
    assert json.loads(allowed) == f"Bash({program} undo --dry-run:*)", "of the undo itself a person is asked"
