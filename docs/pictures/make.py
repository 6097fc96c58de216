"""Takes the pictures of the page in the guide: an agent's history, made for real, in a browser.

    python docs/pictures/make.py [--only NAME] [--width 1280] [--into DIRECTORY]

Needs Chromium and the libraries of the extra ``dev``. The agent is a script, but what it does is recorded, undone and
held as that of any agent. Five pages, each light and dark, as PNG with a palette.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

import holdfast

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
HOLDFAST = [sys.executable, "-P", "-m", "holdfast"]
SCHEMES = ("light", "dark")
MOST_BYTES = 120_000

CART = '''"""What a customer has put into the cart, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal


@dataclass(frozen=True)
class Item:
    """A product, and how many of it."""

    name: str
    price: Decimal
    count: int = 1


@dataclass
class Cart:
    items: list[Item] = field(default_factory=list)
    coupon: str | None = None

    def add(self, item: Item) -> None:
        self.items.append(item)

    def total(self) -> Decimal:
        """The sum of all items."""
        return sum((item.price for item in self.items), Decimal(0))


def shipping(total: Decimal) -> Decimal:
    """Free from 50 on."""
    return Decimal(0) if total >= 50 else Decimal("4.90")
'''
TESTS = """from decimal import Decimal

from shop.cart import Cart, Item


def test_an_empty_cart_costs_nothing():
    assert Cart().total() == 0


def test_the_sum_of_all_items():
    cart = Cart([Item("tea", Decimal("4.50")), Item("cup", Decimal("9.00"))])
    assert cart.total() == Decimal("13.50")
"""
LOGO = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><circle cx="32" cy="32" r="28" fill="#0a6a86"/></svg>\n'
PROJECT = {
    "shop/__init__.py": "",
    "shop/cart.py": CART,
    "shop/checkout.py": "from shop.cart import Cart, shipping\n\n\ndef amount(cart: Cart):\n    return cart.total() + shipping(cart.total())\n",
    "tests/test_cart.py": TESTS,
    "assets/logo.svg": LOGO,
    "pyproject.toml": '[project]\nname = "shop"\nversion = "0.3.0"\nrequires-python = ">=3.11"\n',
    "README.md": "# Shop\n\nA small shop. `python -m shop` starts it.\n",
    ".gitignore": "*.log\n.venv/\n",
}

COUNTS = r"""
sed -i 's/return sum((item.price for item/return sum((item.price * item.count for item/' shop/cart.py
cat >> tests/test_cart.py <<'END'


def test_items_are_counted():
    cart = Cart([Item("tea", Decimal("4.50"), count=2)])
    assert cart.total() == Decimal("9.00")
END
"""
WITH_COUPONS = (
    CART.replace("(item.price for", "(item.price * item.count for")
    .replace("The sum of all items.", "The sum of all items, less what the coupon takes off.")
    .replace("        return sum(", "        full = sum(")
    .replace("Decimal(0))\n\n\ndef", "Decimal(0))\n        return full - full * discount(self.coupon)\n\n\ndef")
    .replace("50", "75")
    .replace(
        "def shipping(",
        '''COUPONS = {"WELCOME": Decimal("0.10"), "STAFF": Decimal("0.30")}


def discount(coupon: str | None) -> Decimal:
    """What a coupon takes off, as a part of the total."""
    return COUPONS.get(coupon or "", Decimal(0))


def shipping(''',
    )
)
COUPONS = f"""
tee shop/cart.py > /dev/null <<'END'
{WITH_COUPONS}END
mv shop/checkout.py shop/payment.py
sed -i 's/cart.total() + shipping/round(cart.total(), 2) + shipping/' shop/payment.py
printf '\\nCoupons are in `shop/cart.py`.\\n' >> README.md
"""
CLEANS = """
mkdir -p build
rm -rf tests assets
rm README.md debug.log
false
"""


class Stage:
    """A workspace, and the agents at work in it."""

    def __init__(self, folder: Path, pace: float) -> None:
        self.pace = pace
        self.tree = folder / "shop"
        self.bin = folder / "bin"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            "HOME": str(folder),
            "HOLDFAST_HOME": str(folder / ".holdfast"),
            "HOLDFAST_SAFEGUARD_TIMEOUT": "10m",
            "PATH": f"{self.bin}:{os.environ['PATH']}",
        }

    def holdfast(self, *words: str, fails: bool = False) -> str:
        """Run a command."""
        done = subprocess.run(
            [*HOLDFAST, *words], check=False, cwd=self.tree, env=self.environment, capture_output=True, text=True
        )
        if (done.returncode != 0) != fails:
            raise SystemExit(f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def agent(self, prompt: str, script: str, *, fails: bool = False) -> None:
        """A prompt, and what the agent does about it."""
        with holdfast.open(self.tree, home=self.environment["HOLDFAST_HOME"]) as workspace:
            workspace.prompt(prompt, author="claude")
        (self.bin / "claude").write_text(f"#!/bin/sh\n{script}")
        self.pause(3)
        self.holdfast("run", "--", "claude", fails=fails)
        self.pause(5)

    def pause(self, seconds: float) -> None:
        """Agents and people take their time, which the timeline shows."""
        time.sleep(seconds * self.pace)

    def build(self) -> None:
        """The history."""
        self.tree.mkdir(parents=True)
        self.bin.mkdir()
        (self.bin / "claude").write_text("")
        (self.bin / "claude").chmod(0o755)
        for name, content in PROJECT.items():
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / name).write_text(content)
        (self.tree / "debug.log").write_text("started\n")
        (self.tree / "uploads").mkdir()
        for number in range(70):
            (self.tree / "uploads" / f"photo-{number:03}.jpg").write_bytes(bytes(900 + number))
        self.holdfast("init")
        self.holdfast("checkpoint", "-m", "before the agent", "--author", "ann", "--message", "Version 0.3")
        self.pause(4)
        self.agent("Items have a count now: the total has to respect it. Add a test.", COUNTS)
        self.holdfast("checkpoint", "-m", "counts work", "--author", "ann")
        self.holdfast("fork", "../shop-stripe")
        own, self.tree = self.tree, self.tree.parent / "shop-stripe"
        (self.tree / "shop" / "stripe.py").write_text("def charge(amount):\n    ...\n")
        self.holdfast("checkpoint", "-m", "stripe", "--author", "codex")
        self.tree = own
        self.agent("Add coupons: WELCOME takes 10 % off, STAFF 30 %.", COUPONS)
        self.holdfast("merge", "../shop-stripe")
        self.pause(6)
        (self.tree / "README.md").write_text(
            "# Shop\n\nA small shop. `python -m shop` starts it, `--debug` tells more.\n"
        )
        self.holdfast("checkpoint", "--author", "ann", "--message", "Say what --debug does")
        self.agent("Clean the project up before the release.", CLEANS, fails=True)
        self.holdfast("undo", "--run")

    @contextmanager
    def held(self) -> Iterator[None]:
        """An agent that a safeguard asks about."""
        (self.bin / "claude").write_text("#!/bin/sh\nfind uploads -name '*.jpg' -delete\n")
        run = subprocess.Popen(
            [*HOLDFAST, "run", "--guard", "--", "claude"],
            cwd=self.tree,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            run.terminate()
            run.wait()

    @contextmanager
    def served(self) -> Iterator[str]:
        """The address that lets one browser in."""
        server = subprocess.Popen(
            [*HOLDFAST, "ui", "--json"], cwd=self.tree, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["address"]
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()


def take(page: Any, into: Path, name: str, *, plain: bool) -> None:
    """The page in both schemes."""
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.mouse.move(0, 0)
        time.sleep(0.3)
        picture = into / f"{name}-{scheme}.png"
        picture.write_bytes(page.screenshot() if plain else with_palette(page.screenshot()))
        print(f"{picture.name:28} {picture.stat().st_size:8,} bytes")
        if not plain and picture.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{picture} is larger than {MOST_BYTES:,} bytes")


def shoot(stage: Stage, into: Path, width: int, height: int, only: str, *, plain: bool) -> None:
    """All pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver, stage.served() as entry:
        browser = driver.chromium.launch(executable_path=chromium, args=[*options, "--font-render-hinting=none"])
        page = browser.new_page(viewport={"width": width, "height": height})
        base = entry.rpartition("/")[0]
        page.goto(entry)
        page.wait_for_url(f"{base}/")
        runs = page.locator(".row.kind-run")
        if only in ("", "timeline"):
            runs.nth(1).locator(".steps > summary").click()
            page.locator(".step").first.wait_for()
            page.evaluate("document.activeElement.blur()")
            take(page, into, "timeline", plain=plain)
        if only in ("", "state"):
            page.goto(f"{base}/state/@?path=shop/cart.py")
            take(page, into, "state", plain=plain)
        if only in ("", "diff"):
            page.goto(f"{base}/")
            page.goto(base.rpartition("/")[0] + runs.nth(1).locator("a.changes").get_attribute("href"))
            page.locator(".diff").first.wait_for()
            take(page, into, "diff", plain=plain)
        if only in ("", "undo"):
            page.goto(f"{base}/act/restore?to=counts%20work")
            take(page, into, "undo", plain=plain)
        if only in ("", "safeguard"):
            page.goto(f"{base}/")
            with stage.held():
                page.locator("#held .waiting-operation").wait_for()
                take(page, into, "safeguard", plain=plain)
        browser.close()


# -- PNG with a palette: text and few colours need no more ------------------------------------------------------------


def with_palette(picture: bytes) -> bytes:
    """A PNG of 8-bit RGB or RGBA without interlacing, with the 256 colours that it has most; others become the next."""
    width, height, channels, rows = _pixels(picture)
    colours = Counter(rows[at : at + 3] for at in range(0, len(rows), channels))
    kept = _palette([colour for colour, _ in colours.most_common()])
    index = {colour: number for number, colour in enumerate(kept)}
    for colour in colours:
        if colour not in index:
            index[colour] = min(range(len(kept)), key=lambda number: _distance(kept[number], colour))
    lines = bytearray()
    for y in range(height):
        begin = y * width * channels
        lines.append(0)
        lines += bytes(index[rows[at : at + 3]] for at in range(begin, begin + width * channels, channels))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", b"".join(kept)), (b"IDAT", zlib.compress(bytes(lines), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def _palette(colours: list[bytes]) -> list[bytes]:
    """The first of ``colours``, which are areas, and of the others none that is nearly another one: those that are rare
    count as well.
    """
    nearest = 0
    while True:
        kept: list[bytes] = []
        for colour in colours:
            if len(kept) < 48 or all(_distance(one, colour) > nearest for one in kept):
                kept.append(colour)
                if len(kept) > 256:
                    break
        else:
            return kept
        nearest = nearest * 2 + 1


def _distance(one: bytes, other: bytes) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _pixels(picture: bytes) -> tuple[int, int, int, bytes]:
    """Width, height, bytes of a pixel, and all of them."""
    at, data, head = 8, b"", b""
    while at < len(picture):
        (size,) = struct.unpack_from(">I", picture, at)
        kind, content = picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]
        head = content if kind == b"IHDR" else head
        data += content if kind == b"IDAT" else b""
        at += 12 + size
    width, height, depth, colour = struct.unpack_from(">IIBB", head)
    channels = {2: 3, 6: 4}[colour]
    if depth != 8:
        raise ValueError(f"{depth} bits")
    raw, length = zlib.decompress(data), width * channels
    found, before = bytearray(), bytearray(length)
    for y in range(height):
        begin = y * (length + 1)
        line = bytearray(raw[begin + 1 : begin + 1 + length])
        _unfilter(raw[begin], line, before, channels)
        found += line
        before = line
    return width, height, channels, bytes(found)


def _unfilter(kind: int, line: bytearray, before: bytearray, step: int) -> None:
    """What the filters of PNG (RFC 2083, 6) have taken from a line, in place."""
    for at in range(len(line)):
        left = line[at - step] if at >= step else 0
        up = before[at]
        match kind:
            case 0:
                return
            case 1:
                add = left
            case 2:
                add = up
            case 3:
                add = (left + up) // 2
            case _:
                corner = before[at - step] if at >= step else 0
                guess = left + up - corner
                add = min((left, up, corner), key=lambda one: abs(guess - one))
        line[at] = (line[at] + add) & 255


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=760)
    parser.add_argument("--plain", action="store_true", help="as the browser gives them, which is quicker")
    parser.add_argument("--pace", type=float, default=1.0, help="0: nobody waits")
    parser.add_argument("--into", type=Path, default=HERE)
    arguments = parser.parse_args()
    folder = Path(tempfile.gettempdir(), "ann")
    folder.mkdir()  # (It is on the pictures, so it is always the same.)
    try:
        stage = Stage(folder, arguments.pace)
        stage.build()
        arguments.into.mkdir(parents=True, exist_ok=True)
        shoot(stage, arguments.into, arguments.width, arguments.height, arguments.only, plain=arguments.plain)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
