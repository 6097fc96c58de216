"""``image``: the family of commands about what virtual machines begin as."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.cli.command import Command, text
from holdfast.model.answers import commands as answers
from holdfast.model.clock import isoformat
from holdfast.model.message_text import size, visible

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console
    from holdfast.sandbox.images.manifest import Image
    from holdfast.sandbox.images.store import ImageStore

VERBS = {
    "build": ("image", "build one of Debian's packages"),
    "list": ("image", "those of this home"),
    "remove": ("image", "remove one"),
    "import": ("image", "make one of a container's image"),
}


def open_images(console: Console, *, create: bool = False) -> ImageStore:
    """The images of the home. With ``create``, a missing home is made."""
    from holdfast.engine.opening.home import default_home, make_private
    from holdfast.sandbox.images.store import ImageStore

    home = default_home(os.environ) if console.home is None else os.path.abspath(os.fsencode(console.home))
    if create:
        make_private(home)
    return ImageStore(home)


def provide_default(console: Console, name: str) -> None:
    """If ``name`` is the default image and it is missing, build it, with a note. Raises as `ImageStore.build` does."""
    from holdfast.model.errors import NotFoundError
    from holdfast.sandbox.images.debian_builder import Recipe
    from holdfast.sandbox.images.manifest import DEFAULT_NAME

    if name != DEFAULT_NAME:
        return
    images = open_images(console, create=True)
    try:
        images.find(name)
    except NotFoundError:
        console.note("There is no image yet. The default one is built now, once:")
        images.build(name, Recipe(), console.note)


def _nothing(_parser: argparse.ArgumentParser) -> None:
    pass


def _family(console: Console, arguments: argparse.Namespace) -> int:
    return arguments.verb.run(console, arguments)


def _configure_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", type=text, default="default", help="its name (default)")
    parser.add_argument("--suite", metavar="SUITE", type=text, default="", help="the release (default: this host's)")
    parser.add_argument(
        "--mirror",
        metavar="URL",
        type=text,
        default="",
        help="where packages come from (default: as for this host's apt)",
    )
    parser.add_argument(
        "--package", metavar="PACKAGE", dest="packages", action="append", type=text, help="install this package as well"
    )
    parser.add_argument(
        "--run", metavar="COMMAND", dest="commands", action="append", type=text, help="run this command in it, as root"
    )
    parser.add_argument(
        "--kernel",
        metavar="PACKAGE",
        type=text,
        default="",
        help="the kernel's package (default: linux-image-cloud-amd64, without 9P; Ubuntu's: linux-image-virtual)",
    )


def _build(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.sandbox.images.debian_builder import Recipe

    recipe = Recipe(
        arguments.suite,
        arguments.mirror,
        tuple(arguments.packages or ()),
        tuple(arguments.commands or ()),
        arguments.kernel,
    )
    image = open_images(console, create=True).build(arguments.name, recipe, console.note)
    return _tell_of(console, image, "Built")


def _configure_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", type=text, help="the name of the image")
    parser.add_argument("file", metavar="FILE", help="an archive by `docker save` or `skopeo copy`")


def _import(console: Console, arguments: argparse.Namespace) -> int:
    path = os.path.abspath(os.fsencode(arguments.file))
    image = open_images(console, create=True).import_archive(arguments.name, path, console.note)
    return _tell_of(console, image, "Imported")


def _tell_of(console: Console, image: Image, done: str) -> int:
    if console.json:
        console.give(answers.Image, image, bytes=_bytes(image))
        return 0
    about = image.manifest
    console.say(
        f"{done} the image {image.name} ({size(_bytes(image))}).",
        f"  kernel  {about.kernel_release}",
        f"  python  {about.python}",
        f"  root    {visible(about.source)}",
    )
    if console.quiet:
        console.answer([image.id])
    return 0


def _list(console: Console, arguments: argparse.Namespace) -> int:
    del arguments
    found = open_images(console).list()
    if console.json:
        console.give(answers.Images, images=[_described(one) for one in found])
        return 0
    if not found:
        console.say("No images; `holdfast image build` builds one.")
    console.table(
        (("image", 0), ("built", 0), ("size", 8), ("kernel", 0), ("root", 0)),
        (
            (
                one.name,
                isoformat(one.manifest.created_at)[:19],
                size(_bytes(one)),
                one.manifest.kernel_release,
                visible(one.manifest.source),
            )
            for one in found
        ),
    )
    return 0


def _described(image: Image) -> answers.Image:
    from holdfast.model.json_encoder import encode

    return encode(answers.Image, image, bytes=_bytes(image))


def _bytes(image: Image) -> int:
    return sum(file.bytes for file in image.manifest.files())


def _configure_remove(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", type=text, help="which")


def _remove(console: Console, arguments: argparse.Namespace) -> int:
    open_images(console).remove(arguments.name)
    if console.json:
        console.give(answers.RemovedImage, removed=arguments.name)
    else:
        console.say(f"Removed the image {arguments.name}.")
    return 0


COMMANDS = {
    "image": Command(
        description="Images of virtual machines: the kernel and root file system that `run --isolation "
        "vm` starts from. `holdfast image COMMAND --help` tells all about one command.",
        configure=_nothing,
        run=_family,
        examples=(
            ("holdfast image build", "the one that is used unless another is named"),
            ("holdfast image build node --package nodejs --package npm", "with more in it"),
            ("holdfast image import app app.tar", "of a container's image"),
            ("holdfast image list", "every image"),
            ("holdfast image remove node", "remove one"),
        ),
        verbs=VERBS,
    ),
    "image build": Command(
        description="Build an image from Debian packages; it replaces one of the same name. It holds Debian's "
        "smallest set, python3, git, ca-certificates, procps, iproute2 and sudo. The command first says what it "
        "will fetch; nothing is installed on this host. It needs mmdebstrap, mksquashfs, busybox-static and apt, "
        "without root also uidmap, and ids in /etc/subuid and /etc/subgid (exit 1: `tools_missing`, "
        "`no_user_namespaces`).",
        configure=_configure_build,
        run=_build,
        examples=(
            ("holdfast image build", "the image called default"),
            ("holdfast image build node --package nodejs --package npm", "with more packages"),
            ("holdfast image build tools --run 'useradd -m dev'", "with what a command does in it"),
            ("holdfast image build next --suite trixie", "of another release"),
        ),
        notes=(
            (
                "--package and --run may be repeated. /bin/sh runs the commands in order, with the network; if "
                "one fails there is no image."
            ),
            "SIGKILL of a build without root leaves mmdebstrap.* among the temporary files.",
        ),
    ),
    "image list": Command(
        description="List the images in the home, by name.",
        configure=_nothing,
        run=_list,
        examples=(("holdfast image list", "every image"),),
    ),
    "image remove": Command(
        description="Remove an image, for good. A running machine goes on.",
        configure=_configure_remove,
        run=_remove,
        examples=(("holdfast image remove node", "remove it"),),
    ),
    "image import": Command(
        description="Make an image from a container's: an archive of `docker save` or `podman save`, or one in "
        "OCI format, for this host's architecture. The kernel is that of another image, or is fetched. The "
        "container's environment, entry point and user are ignored. It needs squashfs-tools.",
        configure=_configure_import,
        run=_import,
        examples=(
            ("docker save python:3.12-slim -o python.tar && holdfast image import python python.tar", "from Docker"),
            ("skopeo copy docker://python:3.12-slim oci-archive:python.tar", "without Docker, then import it"),
        ),
        notes=(
            (
                "The archive may be compressed and must hold one image, with Python 3.8 or later in "
                "/usr/local/bin, /usr/bin or /bin (else exit 1: `image_without_python`)."
            ),
        ),
        exits=(
            (4, "refused: names in it lead out of it"),
            (5, "it is damaged, or no container's image"),
        ),
    ),
}
