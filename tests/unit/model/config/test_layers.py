"""Settings from several places: limits, precedence, who may set what, and that any value is taken or refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.config.keys import KEYS
from holdfast.model.config.layers import Layer, resolve
from holdfast.model.config.settings import Settings, default
from holdfast.model.errors import ConfigError


def one(name: str, value: object, *, foreign: bool = False) -> Settings:
    section, key = name.split(".")
    return resolve([Layer("some.toml", {section: {key: value}}, foreign)])


def value_of(given_settings: Settings, name: str) -> Any:
    section, key = name.split(".")
    return getattr(getattr(given_settings, section), key)


def test_setting_a_default_changes_nothing() -> None:
    for name in KEYS:
        assert one(name, default(name)) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("capture.max_file_bytes", 0, "not between"),
        ("capture.max_file_bytes", "many", "not a number of bytes"),
        ("capture.exclude", "*.pem", "not a list"),
        ("capture.exclude", ["!keep"], "begins with '!'"),
        ("capture.exclude", ["a\nb"], "line break"),
        ("capture.exclude", ["a"] * 1001, "more than"),
        ("capture.exclude", [["a"]], "not a text"),
        ("store.tenant", "../other", "does not match"),
        ("store.tenant", "", "does not match"),
        ("store.pack_bytes", 1, "1 is not between 1MiB and 1GiB"),
        ("vm.memory", "1MiB", "'1MiB' is not between 128MiB and 1TiB"),
        ("vm.environment", ["API_KEY=s3cret"], "'API_KEY=…' is not the name of a variable, whose value is taken from"),
        ("isolation.environment", ["API_KEY=s3cret"], "'API_KEY=…' is not the name of a variable"),
        ("vm.environment", ["$HOME"], "is not the name of a variable"),
        ("vm.environment", ["LC_*_X"], "is not the name of a variable"),
        ("vm.environment", [""], "is not the name of a variable"),
        ("vm.files", [".gitconfig"], "'.gitconfig' is not the path of a file from `/` or from `~/`"),
        ("vm.files", ["~"], "is not the path of a file"),
        ("store.url", 5, "not a text"),
        ("store.url", "x" * 5000, "at most"),
        ("store.url", "x" * 4000, "names no absolute path"),
        ("store.url", "s3://", "names no bucket"),
        ("session.cold_url", "cold", "'cold' names no absolute path"),
        ("session.cold_url", "s4://bucket", "not the scheme of an object store"),
        ("watch.backend", "dnotify", "none of auto, fanotify, inotify, polling"),
        ("watch.max_per_hour", 0, "not between"),
        ("watch.max_per_hour", 1.5, "not a whole number"),
        ("watch.max_per_hour", True, "not a whole number"),
        pytest.param("watch.max_per_hour", 1 << 20_000, "a huge number is not between", id="huge"),
        ("watch.debounce", -1, "not between"),
        ("watch.debounce", math.nan, "not between"),
        ("watch.debounce", math.inf, "not between"),
        ("gc.rewrite_ratio", 1.5, "not between"),
        ("gc.rewrite_ratio", "half", "not a number"),
        ("files.uid", -2, "not between"),
        ("capture.nothing", 1, "no such key; there are capture.max_file_bytes"),
        ("captures.exclude", [], "no such section; there are capture"),
    ],
)
def test_a_bad_value_is_named_with_place_key_and_reason(name: str, value: object, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        one(name, value)
    assert caught.value.message.startswith(f"some.toml: {name if 'section' not in reason else 'captures'}: ")
    assert reason in caught.value.message
    assert len(caught.value.message) < 400


def test_a_section_that_is_no_table_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"some\.toml: watch: it is a section"):
        resolve([("some.toml", {"watch": 5})])


def test_the_first_layer_that_sets_a_key_wins() -> None:
    layers = [
        ("flags", {"watch": {"debounce": "1s"}}),
        ("file", {"watch": {"debounce": "2s", "max_per_hour": 5}}),
        ("home", {"watch": {"max_per_hour": 6, "backend": "polling"}}),
    ]
    found = resolve(layers).watch
    assert (found.debounce, found.max_per_hour, found.backend, found.max_interval) == (1.0, 5, "polling", 300.0)


def test_patterns_of_all_layers_add_up() -> None:
    layers = [("flags", {"capture": {"exclude": ["a"]}}), ("home", {"capture": {"exclude": ["b", "a"]}})]
    assert resolve(layers).capture.exclude == ("a", "b")
    assert resolve([("flags", {"capture": {"exclude": []}}), layers[1]]).capture.exclude == ("b", "a")


def test_a_workspaces_file_sets_only_what_concerns_its_own_capture_and_build() -> None:
    for name, key in KEYS.items():
        if key.workspace == "no":
            with pytest.raises(ConfigError, match="may not set it") as caught:
                one(name, default(name), foreign=True)
            assert caught.value.hint is not None
            assert "config.toml in the home" in caught.value.hint
        else:
            assert one(name, default(name), foreign=True) == Settings()
    refused = {name.split(".")[0] for name, key in KEYS.items() if key.workspace == "no"}
    allowed = {name.split(".")[0] for name, key in KEYS.items() if key.workspace != "no"}
    assert refused >= {"store", "lock", "retention", "gc", "files", "identity"}
    assert allowed == {"capture", "promote", "watch"}
    assert refused & allowed == {"capture", "promote"}
    own = {name for name, key in KEYS.items() if name.startswith("promote.") and key.workspace == "no"}
    assert own >= {"promote.restart", "promote.isolation", "promote.network", "promote.memory"}, "what holds it in"


def test_a_workspaces_file_may_lower_a_limit_and_not_raise_it() -> None:
    """Whatever the order of precedence: a limit that the user set in the home holds for what comes with a workspace."""
    home = Layer("config.toml", {"capture": {"max_file_bytes": "10MiB"}})
    ours = Layer("holdfast.toml", {"capture": {"max_file_bytes": "1MiB"}}, foreign=True)
    assert resolve([ours, home]).capture.max_file_bytes == 1 << 20
    more = Layer("holdfast.toml", {"capture": {"max_file_bytes": "11MiB"}}, foreign=True)
    with pytest.raises(ConfigError, match=r"holdfast\.toml: capture\.max_file_bytes: it may only be lower"):
        resolve([more, home])
    with pytest.raises(ConfigError, match="may only be lower"):
        resolve([Layer("holdfast.toml", {"watch": {"max_per_hour": 61}}, foreign=True)])


VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(KEYS)), VALUES, st.booleans())
def test_any_value_is_taken_or_refused(name: str, value: object, foreign: bool) -> None:
    """I12: whatever a file holds, the answer is a value of the key's own kind or a typed error."""
    try:
        found = value_of(one(name, value, foreign=foreign), name)
    except ConfigError:
        return
    assert type(found) is type(default(name))
