"""A patch on a terminal."""

from __future__ import annotations

from holdfast.cli.colored_patch import for_terminal
from holdfast.cli.terminal import Palette

PATCH = b"""diff --git a/x b/x
--- a/x
+++ b/x
@@ -1,3 +1,3 @@ f
 same
--- not a header
+++ not one either
 \x1b[2J
\\ No newline at end of file
@@ -9 +9 @@
-a
+b
diff --git a/y b/y
"""


def test_without_colours_it_is_the_same_text_made_visible() -> None:
    lines = list(for_terminal(Palette(False), [PATCH]))
    assert lines == PATCH.replace(b"\x1b", b"\\x1b").decode().splitlines()


def test_colours_follow_the_counts_of_the_hunks_not_the_looks_of_the_lines() -> None:
    lines = list(for_terminal(Palette(True), [PATCH]))
    assert lines[1] == "\x1b[1m--- a/x\x1b[0m"
    assert lines[3] == "\x1b[36m@@ -1,3 +1,3 @@ f\x1b[0m"
    assert lines[5] == "\x1b[31m--- not a header\x1b[0m"
    assert lines[6] == "\x1b[32m+++ not one either\x1b[0m"
    assert lines[7] == " \\x1b[2J"
    assert lines[-1] == "\x1b[1mdiff --git a/y b/y\x1b[0m"


def test_it_does_not_matter_how_the_patch_is_cut_into_pieces() -> None:
    whole = list(for_terminal(Palette(True), [PATCH]))
    assert list(for_terminal(Palette(True), [PATCH[i : i + 1] for i in range(len(PATCH))])) == whole
    assert list(for_terminal(Palette(True), [PATCH[:-1]])) == whole
