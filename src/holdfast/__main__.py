"""``python -m holdfast``: the same as the installed command."""

from __future__ import annotations

from holdfast.cli.main import run

if __name__ == "__main__":
    run()
