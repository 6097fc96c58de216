"""The table of programs and their effects, and its parser.

A line of `TABLE` is ``LEVEL CONDITIONS = PROGRAMS``. The first line that names a program and whose conditions all hold
gives its level; without one, it is "unknown". ``= npm|bun: add ci`` names commands of programs, ``stash/list`` one of a
command. The longest name that a command's words begin with is used. Conditions are words:

- ``only``: all options are among the following ones, or digits. ``-ab`` stands for letters, together or apart, ``-n=``
  and ``--name=`` for an option with a value.
- ``not``, ``with``: none or any of the following is present, or may be: a letter anywhere after a single dash, an
  abbreviated long option. A word without a leading dash is a pattern for any word.
- ``alone``: there is one argument, and it is one of the following. ``bare``: there is no operand.
- ``paths``: each operand is a file that is written, and counts as such. ``last``: only the last one is. ``erase``: all
  below each operand is removed, which is dangerous outside the workspace. ``script``: it fits a pattern in `SCRIPTS`.

A program belongs in a "safe" line only if under its conditions it can neither write nor run another program.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.session_types import LEVELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.session_types import Level

TABLE = r"""
# -- what a shell does itself
safe = echo : true false pwd type
safe not -v -R *$* *`* = test [ printf exit return
safe with -v -V = command

# -- readers
safe = arch b2sum base32 base64 basename cat cksum cmp col column comm cut df diff dig dir dirname du egrep expand expr
safe = factor fgrep fmt fold free getconf getent getfacl grep groups head hexdump host hostid id join jq locale logname
safe = ls lsattr lsblk lscpu lsmod lspci lsusb md5sum nl nproc nslookup numfmt od paste pgrep pidof ping pr printenv ps
safe = pstree readlink realpath rev seq sha1sum sha224sum sha256sum sha384sum sha512sum shasum sleep stat sum tac tail
safe = tr tsort tty uname unexpand uptime users vdir wc whereis which who whoami yes zcat
safe not -o -T --output --compress-program --temporary-directory = sort shuf
safe not -o -R --output = tree
safe not --plugin = nm objdump readelf size strings
safe not --pre --hostname-bin = rg
safe not -x -X --exec --exec-batch = fd
safe not -C --compile = file
safe only -u -d= -I= -R -r= --date= --utc --iso-8601= --rfc-3339= not [0-9]* = date
safe bare = uniq
changes paths only -cdui -f= -s= -w= = uniq
risky erase with -delete not -exec* -ok* -fprint* -fls = find
safe not -exec* -ok* -delete -fprint* -fls = find
safe script only -nErsu = sed
changes paths script only -nErsui --in-place = sed
safe script only -F= -v= = awk gawk mawk nawk

# -- files
changes paths only -acm --no-create -d= -r= -t= = touch
changes paths only -pv -m= --parents --mode= = mkdir
changes paths only -pv not /dev/* = rmdir unlink
changes paths only -dfiIv --force --verbose not /dev/* = rm
risky erase = rm
changes paths only -fginuv --force --verbose not /dev/* = mv
changes last only -adfinprRLPuvx --archive --recursive --force --verbose --preserve= = cp
changes last only -fnsrTv --symbolic --force = ln
changes last only -pv -m= --mode= = install
changes paths only -a --append = tee
changes paths only -c -s= --size= = truncate
changes paths only -cfv = chmod
risky erase = chmod chown chgrp setfacl chattr shred
changes paths only = dd
changes paths only -dfkqv = gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd
safe with -t only -tzjJv -f= --list not *:* = tar
changes paths with -c only -czjJva -f= not *:* = tar
changes paths with -x only -xzjJv -f= -C= not *:* = tar
safe with -l only -l = unzip
changes paths only -oqn -d= = unzip
changes paths only -rqj = zip

# -- git
safe alone --version = git
safe not --output --ext-diff -O --open-files-in-pager = git: status log diff show blame shortlog describe rev-parse
safe not --output --ext-diff -O --open-files-in-pager = git: rev-list ls-files ls-tree cat-file grep merge-base name-rev
safe not --output --ext-diff -O --open-files-in-pager = git: diff-tree diff-index diff-files for-each-ref show-ref
safe not --output --ext-diff -O --open-files-in-pager = git: check-ignore count-objects stash/list stash/show
safe bare only -arv --all --remotes --list --show-current = git: branch tag remote
safe only -l -n --list with -l --list = git: tag
safe only --get --get-all -lz --list --global --local with --get --get-all -l --list = git: config
safe = git: worktree/list remote/get-url submodule/status
safe only -n --dry-run -d -x -X with -n --dry-run = git: clean
dangerous with -f -d --force --force-with-lease --mirror --delete --prune +* :* = git: push
dangerous = git: filter-branch filter-repo stash/drop stash/clear reflog/expire reflog/delete prune
dangerous with --prune = git: gc
risky = git: add am apply archive branch checkout cherry-pick clean clone commit config fetch format-patch gc init merge
risky = git: mv notes pull push read-tree rebase remote reset restore revert rm sparse-checkout stash switch tag
risky = git: submodule update-index update-ref worktree

# -- packages and builds (what runs code of the project is not here, and so unknown)
safe alone --version -v = node npm pnpm yarn
safe alone --version -V = python python3 npx cargo rustc java make cmake pip pip3 uv docker
safe alone --version -V = bash kubectl gcc clang ruff black pytest mypy ruby perl php terraform gh
safe only -ag --all --global --json --long --depth= = npm: ls list outdated view
safe only -o --outdated --user --format= = pip|pip3: list show freeze check
safe only -json = go: env version
risky bare only = yarn
risky = npm|pnpm|yarn|bun: install i ci add uninstall remove rm update up upgrade import dedupe prune link rebuild set
risky = npm|pnpm|yarn|bun: login logout version
risky = pip|pip3|pipx: install uninstall upgrade inject download wheel cache config
risky = uv: add remove sync lock venv pip/install pip/uninstall pip/sync tool/install tool/uninstall python/install
risky = poetry|conda|cargo|gem|bundle|composer|go: install uninstall add create remove update lock require get clean
risky = apt|apt-get|dnf|apk|brew: install remove purge update upgrade full-upgrade dist-upgrade autoremove clean add del
risky = brew: uninstall reinstall tap untap link unlink cleanup services
dangerous = npm|pnpm|yarn|cargo|poetry|uv: publish unpublish deprecate yank
dangerous = gem: push yank
changes paths only -q --check --diff --fix --select= = ruff: check format
changes paths only -q --check --diff = black

# -- the network, containers, other machines
risky with -d -F -T -X -Q --data* --form* --upload-file --request --json = curl
safe only -sSLfkiIvgN -H= -A= -e= -m= --silent --show-error --location --fail --head --include --compressed = curl
changes paths only -sSLfkiIvgN -H= -A= -e= -m= --silent --location --fail -o= -O --output= = curl
changes paths only -qcSN -O= -P= = wget
risky = scp ssh sftp ftp nc ncat netcat socat telnet rclone mail sendmail
safe not --host = docker: ps images version info logs inspect top port stats diff history search image/ls
risky = docker: build pull create start stop restart kill rm rmi tag login logout commit cp load import rename
risky = docker: image/rm image/prune container/rm container/prune network/rm network/prune compose/stop compose/down
dangerous = docker: push system/prune volume/rm volume/prune
safe not --kubeconfig --cache-dir --profile --profile-output = kubectl: get describe logs top version explain
risky = kubectl: apply create scale rollout patch label annotate set edit expose autoscale cordon uncordon taint
dangerous = kubectl: delete drain replace
risky = terraform: apply import
dangerous = terraform: destroy
safe not -w --web = gh: pr/list pr/view pr/diff pr/checks pr/status issue/list issue/view issue/status repo/view
safe not -w --web = gh: run/list run/view release/list release/view
risky = gh: pr/create pr/merge pr/close pr/comment pr/edit pr/review pr/ready pr/checkout issue/create issue/close
risky = gh: issue/comment issue/edit release/create repo/create repo/clone repo/fork run/rerun run/cancel workflow/run
dangerous = gh: repo/delete release/delete issue/delete

# -- the machine
safe not -H --host -M --machine = systemctl: status is-active is-enabled is-failed list-units list-unit-files
risky = systemctl: start stop restart reload enable disable mask unmask daemon-reload kill
dangerous = systemctl: poweroff reboot halt
safe with -l only -l = kill
dangerous with [-]1 = kill
risky = kill killall pkill mktemp
safe bare only -l = mount
dangerous = mkfs mkfs.ext4 mkfs.xfs mkfs.btrfs mkfs.vfat mkswap fdisk sfdisk parted wipefs swapoff
dangerous = mount umount shutdown reboot halt poweroff useradd userdel usermod passwd visudo iptables nft insmod rmmod
dangerous = modprobe twine
"""

GLOBALS: Mapping[str, tuple[str, ...]] = {
    "git": ("--no-pager", "-P", "--no-optional-locks", "-C="),
    "npm": ("--prefix=",),
    "kubectl": ("-n=", "--namespace=", "--context="),
}
"""Options between a program and its command that change no level."""

WRAPPERS = """
safe = setsid command exec
changes = nohup
safe -p = time
safe -n= --adjustment= = nice
safe -c= -n= = ionice
safe -o= -i= -e= = stdbuf
safe 1 -k= -s= -v --signal= --kill-after= --foreground = timeout
safe assigns -i -u= = env
safe appends -0 -r -t -n= -P= -L= -d= -s= = xargs
risky assigns -E -H -n -u= = sudo doas
"""
"""Programs that run the command at the end of their words: the minimal level, the number of operands before it, whether
assignments may precede it (``assigns``), whether unknown words follow it (``appends``), and options. (`xargs -I` puts
words anywhere, even into the text of a shell.)
"""

SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
"""Run a text after ``-c``."""

VARIABLES = """
    CI COLORTERM COLUMNS DEBIAN_FRONTEND FORCE_COLOR GIT_OPTIONAL_LOCKS LANG LANGUAGE LC_ALL LC_COLLATE LC_CTYPE
    LC_MESSAGES LC_NUMERIC LC_TIME LINES NO_COLOR NODE_ENV PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED RUST_BACKTRACE TZ
""".split()  # noqa: SIM905 - short, as the tables
"""Variables with which no program writes or runs anything else, with a value of `VALUE`."""
VALUE = re.compile(r"[\w.:@+-]*", re.ASCII)

_S = r"s(?P<by>[/|,#:@])(?:\\.|(?!(?P=by))[^\\\n])*(?P=by)(?:\\.|(?!(?P=by))[^\\\n])*(?P=by)[gIip0-9]*"
SCRIPTS: Mapping[str, tuple[re.Pattern[str], bool]] = {
    # One command that prints, deletes or replaces; `w`, `e` and the like write and run.
    "sed": (re.compile(rf"(?:(?:\d+|\$)(?:,(?:\d+|\$))?|/[^/\\\n]*/)?(?:[pd]|{_S})", re.ASCII), False),
    "awk": (re.compile(r"(?!.*system)[^|>@]*", re.DOTALL), True),
}
"""The scripts that only read or edit; True: each operand has to be one, as any may be the script."""


class Row(NamedTuple):
    """A line of `TABLE`."""

    level: Level
    conditions: Mapping[str, tuple[str, ...]]
    """The words of each condition."""


class Wrapper(NamedTuple):
    """A line of `WRAPPERS`."""

    level: Level
    operands: int
    marks: tuple[str, ...]
    options: tuple[str, ...]


_LEVELS: Mapping[str, Level] = {level: level for level in LEVELS}
_CONDITIONS = frozenset(("only", "not", "with", "alone", "bare", "paths", "last", "erase", "script"))


@cache
def rows() -> Mapping[tuple[str, ...], tuple[Row, ...]]:
    """`TABLE`, by the names of a program and its commands."""
    found: dict[tuple[str, ...], tuple[Row, ...]] = {}
    for left, names in _lines(TABLE):
        conditions: dict[str, tuple[str, ...]] = {}
        current = ""
        for word in left[1:]:
            if word in _CONDITIONS:
                current = word
                conditions[current] = ()
            else:
                conditions[current] += (word,)
        row = Row(_LEVELS[left[0]], conditions)
        # A lone colon is a shell builtin.
        parents = names.pop(0)[:-1].split("|") if len(names[0]) > 1 and names[0].endswith(":") else [""]
        for parent, name in product(parents, names):
            key = (parent, *name.split("/")) if parent else (name,)
            found[key] = (*found.get(key, ()), row)
    return found


@cache
def wrappers() -> Mapping[str, Wrapper]:
    """`WRAPPERS`, by name."""
    found: dict[str, Wrapper] = {}
    for left, names in _lines(WRAPPERS):
        rest = left[1:]
        operands = next((int(word) for word in rest if word.isdigit()), 0)
        marks = tuple(word for word in rest if word.isalpha())
        options = tuple(word for word in rest if word.startswith("-"))
        found.update(dict.fromkeys(names, Wrapper(_LEVELS[left[0]], operands, marks, options)))
    return found


def _lines(table: str) -> list[tuple[list[str], list[str]]]:
    lines = [line for line in table.splitlines() if line and not line.startswith("#")]
    parts = [line.rpartition(" = ") for line in lines]
    return [(left.split(), right.split()) for left, _, right in parts]
