"""``store``: the family of commands about where everything is kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.cli.command import Command
from holdfast.model.answers import upkeep as answers
from holdfast.model.message_text import plural, size, visible

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console
    from holdfast.engine.opening.opener import Opener
    from holdfast.engine.upkeep.store_copies import StoreInfo

VERBS = {
    "info": ("store", "show the place of the objects, and how they are kept"),
    "probe": ("store", "test the place of the objects, step by step"),
    "copy": ("store", "copy the store to another home or another place, verified"),
    "claim": ("store", "claim a bucket for this store"),
}


def _opener(console: Console) -> Opener:
    from holdfast.engine.opening.opener import Opener

    return Opener(home=None if console.home is None else os.fsencode(console.home))


def _nothing(_parser: argparse.ArgumentParser) -> None:
    pass


def _family(console: Console, arguments: argparse.Namespace) -> int:
    return arguments.verb.run(console, arguments)


def _info(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.upkeep import store_copies

    del arguments
    _give_info(console, store_copies.info(_opener(console)))
    return 0


def _give_info(console: Console, found: StoreInfo) -> None:
    if console.json:
        console.give(answers.StoreInfo, found)
        return
    facts = [
        ("home", found.home),
        ("objects", found.location),
        ("tenant", found.tenant),
        ("encrypted", f"with the key {found.encryption_key}" if found.encryption_key else "no"),
    ]
    if found.id:
        facts.append(("store", found.id))
    if found.copy_of:
        facts.append(("copy of", found.copy_of))
    if found.remote:
        facts += [
            ("claimed", found.claimed or "not yet: the next command that opens the store does it"),
            ("conditional writes", found.conditional_writes or "not tried yet"),
            ("cache", f"at most {size(found.cache_bytes)}" if found.cache_bytes else "none"),
        ]
    width = max(len(name) for name, _ in facts)
    console.answer(f"{name:<{width}}  {visible(value)}" for name, value in facts)


def _probe(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.upkeep import store_copies

    del arguments
    found = store_copies.probe(_opener(console))
    if console.json:
        console.give(answers.StoreProbe, found)
    else:
        console.answer([visible(found.location)])
        console.answer(
            f"  {console.paint('+', 'green') if step.ok else console.paint('!', 'red')} {step.name}: "
            f"{visible(step.message)}"
            for step in found.steps
        )
    return int(not found.ok)


def _configure_claim(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--take",
        action="store_true",
        help="remove the claim of another store, which must be gone for good",
    )


def _claim(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.upkeep import store_copies

    found = store_copies.claim(_opener(console), take=arguments.take)
    if console.json:
        console.give(answers.StoreInfo, found)
    else:
        console.say(f"{visible(found.claimed)} is this store's ({found.id}).")
    return 0


def _configure_copy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to-home", metavar="DIR", help="the new home, with a catalog of its own")
    parser.add_argument(
        "--to-objects",
        metavar="URL",
        help="the directory or bucket of the objects (default: in that home); alone: copy only objects",
    )
    parser.add_argument("--to-catalog", metavar="URL", help="the place of the catalog (default: in that home)")
    parser.add_argument(
        "--to-key",
        metavar="PLACE",
        help="the key of the copy: env:NAME, file:PATH, command:WORDS; none: no encryption",
    )


def _copy(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.upkeep import store_copies

    with console.progress() as progress:
        done = store_copies.copy(
            _opener(console),
            to_home=None if arguments.to_home is None else os.fsencode(arguments.to_home),
            to_objects=arguments.to_objects,
            to_catalog=arguments.to_catalog,
            to_key="" if arguments.to_key == "none" else arguments.to_key,
            progress=progress,
        )
    copied = done.copied
    if console.json:
        console.give(answers.StoreCopy, done)
        return 0
    console.say(
        f"Copied {plural(copied.copied_objects, 'object')} of {copied.objects:,} ({size(copied.object_bytes)}) to "
        f"{visible(done.location)}; the others were there.",
        f"Verified, every byte of it: {plural(copied.verified.checkpoints, 'checkpoint')}, "
        f"{plural(copied.verified.blobs, 'blob')}.",
        f"To use it: --home {visible(done.home)}, or HOLDFAST_HOME."
        if done.home is not None
        else f"To use it, set store.url = {visible(done.location)!r} in config.toml of the home.",
    )
    return 0


_CLAIMED = (4, "refused: the bucket is another store's, or the target is not empty; a collection is running")

COMMANDS = {
    "store": Command(
        description="Show, test, copy or claim the place where Holdfast keeps everything. `holdfast store "
        "COMMAND --help` tells all about one command.",
        configure=_nothing,
        run=_family,
        examples=(
            ("holdfast store info", "show where the objects of this home are"),
            ("holdfast store probe", "test reading and writing there"),
            ("holdfast store copy --to-home ~/copy", "copy all of it into another home"),
        ),
        verbs=VERBS,
    ),
    "store info": Command(
        description="Show where the objects of the home are, whether they are encrypted, and facts about the "
        "bucket. It sends nothing.",
        configure=_nothing,
        run=_info,
        examples=(("holdfast store info", "a report to read"), ("holdfast store info --json", "for programs")),
    ),
    "store probe": Command(
        description="Test the place of the objects: write, read, read a part, list, write conditionally, delete.",
        configure=_nothing,
        run=_probe,
        examples=(("holdfast store probe", "a report to read"), ("holdfast store probe --json", "for programs")),
    ),
    "store claim": Command(
        description="Claim the tenant's objects in the bucket for this store, as the first command that opens a "
        "store does by itself. No other store can then collect or keep objects there.",
        configure=_configure_claim,
        run=_claim,
        examples=(
            ("holdfast store claim", "claim it, unless another store has"),
            ("holdfast store claim --take", "take it from a store that is gone for good"),
        ),
        exits=(_CLAIMED,),
    ),
    "store copy": Command(
        description="Copy the whole store into another home, or only its objects to another place, and verify "
        "every byte (docs/reference/store.md#moving-a-store). The source stays in use. After a crash, the same "
        "command continues.",
        configure=_configure_copy,
        run=_copy,
        examples=(
            (
                "holdfast store copy --to-home /srv/holdfast --to-objects s3://bucket/prefix",
                "from a laptop to a bucket",
            ),
            ("holdfast store copy --to-home ~/again", "and back, everything into one directory"),
            ("holdfast store copy --to-objects s3://bucket/prefix", "the objects alone; then set store.url"),
        ),
        exits=(_CLAIMED,),
    ),
}
