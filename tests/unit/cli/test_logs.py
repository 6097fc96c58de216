"""What the library logs reaches standard error as lines or as objects."""

from __future__ import annotations

import json
import logging

import pytest
from holdfast.cli.logs import to_stderr

LOG = logging.getLogger("holdfast.files.watch")


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    to_stderr("INFO", as_json=False)
    to_stderr("INFO", as_json=False)
    LOG.warning("cannot watch %s", "\x1b[2J")
    LOG.info("saved")
    LOG.debug("detail")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "holdfast: warning: cannot watch \\x1b[2J\nholdfast: saved\n")


def test_objects(capsys: pytest.CaptureFixture[str]) -> None:
    to_stderr("WARNING", as_json=True)
    LOG.warning("two\nlines")
    LOG.info("saved")
    assert json.loads(capsys.readouterr().err) == {"log": {"level": "warning", "message": "two\nlines"}}
