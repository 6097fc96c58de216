"""Records the picture of the README: a terminal in which an agent breaks a project, and `holdfast` takes it back.

    python docs/timeline.py            record it anew, into docs/timeline.svg
    python docs/timeline.py --check    record it, and compare with the picture: exit 1 if that shows something else

The commands are run for real, each at a terminal of its own. Ids and ages are another each time: the picture shows
the first recording's, and the comparison leaves them out.
"""

from __future__ import annotations

import os
import pty
import re
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).with_name("timeline.svg")
COLUMNS = 104
PROJECT = {
    "src/cart.py": "def total(items):\n    return sum(item.price for item in items)\n",
    "README.md": "# Shop\n",
    ".gitignore": "*.log\n",
    "debug.log": "started\n",
}
AGENT = """#!/bin/sh
sed -i 's/item.price/item.price * item.count/' src/cart.py
echo '# TODO' >> README.md
rm -rf src debug.log
"""
SESSION = (
    "holdfast init -q; holdfast checkpoint -q -m 'before the agent'",
    "holdfast run -- ./agent",
    "ls",
    "holdfast undo",
    "ls",
    "holdfast log --steps",
)
COLOURS = {"1": ("font-weight", "bold"), "2": ("opacity", "0.6")} | {
    str(30 + number): ("fill", colour)
    for number, colour in enumerate(
        ("#5c6370", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#abb2bf")
    )
}
CHANGING = ((r"\b[0-9a-f]{12}\b", "(id)"), (r" +(now|\d+ (s|min) ago)", " (age)"))


def record() -> list[str]:
    """What the terminal shows, line by line, its colours as escape sequences."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        root = Path(made, "shop")
        for name, content in PROJECT.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        agent = root / "agent"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        program = Path(made, "bin", "holdfast")
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m holdfast "$@"\n')
        program.chmod(0o755)
        environment = {
            "HOLDFAST_HOME": str(Path(made, "home")),
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "COLUMNS": str(COLUMNS),
            "TERM": "xterm",
            "LC_ALL": "C.UTF-8",
            "PAGER": "",
            "HOME": made,
        } | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        for command in SESSION:
            lines.append(f"$ {command}")
            lines += at_terminal(command, root, environment).replace("\r", "").splitlines()
    return lines


def at_terminal(command: str, directory: Path, environment: dict[str, str]) -> str:
    """What a command line shows at a terminal."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(directory)
        os.execve("/bin/sh", ["sh", "-c", command], environment)
    shown = bytearray()
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the other side is closed
            piece = b""
        if not piece:
            break
        shown += piece
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise SystemExit(f"{command}: exit {status}\n{shown.decode()}")
    return re.sub(r"\x1b\[\??[0-9;]*[A-Zhl]", "", shown.decode())  # what moves the cursor; colours end with m


def draw(lines: list[str]) -> str:
    """The lines as a picture of a terminal."""
    height, left, top = 18, 16, 44
    rows = [  # (Browsers do not pass `xml:space` on from a group.)
        f'<text xml:space="preserve" x="{left}" y="{top + number * height}">{"".join(spans(line))}</text>'
        for number, line in enumerate(lines)
    ]
    width, depth = COLUMNS * 8 + 2 * left, top + len(lines) * height
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {depth}" width="{width}" height="{depth}">',
            "<title>An agent deletes the source; one command brings it back</title>",
            f'<rect width="{width}" height="{depth}" rx="8" fill="#21252b"/>',
            *(
                f'<circle cx="{left + 6 + 20 * number}" cy="18" r="6" fill="{colour}"/>'
                for number, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
            ),
            '<g fill="#d7dae0" font-family="ui-monospace, Menlo, monospace" font-size="13">',
            *rows,
            "</g>",
            "</svg>",
            "",
        ]
    )


def spans(line: str) -> list[str]:
    """A line in pieces of one style each."""
    if line.startswith("$ "):
        return [f'<tspan fill="#98c379">$ </tspan><tspan font-weight="bold">{escape(line[2:])}</tspan>']
    made, style = [], ""
    for number, part in enumerate(re.split(r"\x1b\[([0-9;]*)m", line)):
        if number % 2:
            style = "".join(' {}="{}"'.format(*COLOURS[code]) for code in part.split(";") if code in COLOURS)
        elif part:
            made.append(f"<tspan{style}>{escape(part)}</tspan>" if style else escape(part))
    return made


def settled(picture: str) -> str:
    """A picture without what is another each time."""
    for pattern, placeholder in CHANGING:
        picture = re.sub(pattern, placeholder, picture)
    return picture


def main() -> int:
    """Record the picture, or compare it."""
    drawn = draw(record())
    if sys.argv[1:] == ["--check"]:
        if settled(drawn) == settled(PICTURE.read_text()):
            return 0
        sys.stderr.write(f"{PICTURE} shows what does not happen so; `python docs/timeline.py` records it anew.\n")
        return 1
    PICTURE.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
