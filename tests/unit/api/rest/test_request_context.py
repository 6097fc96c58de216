"""Cursors."""

from __future__ import annotations

import pytest

from holdfast.api.rest._request_context import decode_cursor, encode_cursor


@pytest.mark.parametrize("text", ["", "a", "name/with é", "x" * 1000])
def test_a_cursor_comes_back(text: str) -> None:
    assert decode_cursor(encode_cursor(text)) == text
