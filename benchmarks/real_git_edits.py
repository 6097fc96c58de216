"""What `real_git.py` does to a repository before it is captured: changes as an agent makes them, of every kind there is.

What is asked of Git is asked as the user does it; the same seed makes the same changes.
"""

from __future__ import annotations

import os
import random
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

GOVERNED = b"governed by attributes"
"""A directory in which attributes decide what is stored, and what is written out."""
ATTRIBUTES = b"""\
*.crlf text eol=crlf
*.lf text eol=lf
*.auto text=auto
*.bin -text
*.id ident
*.subst export-subst
*.u16 text working-tree-encoding=UTF-16LE
*.u16b text working-tree-encoding=UTF-16
*.mine filter=mine
*.theirs filter=theirs
"""
WRITTEN = {
    b"both.crlf": b"one\r\ntwo\nthree\r\n",
    b"both.lf": b"one\r\ntwo\nthree\r\n",
    b"windows.crlf": b"one\r\ntwo\r\n",
    b"unix.crlf": b"one\ntwo\n",
    b"windows.auto": b"one\r\ntwo\r\n",
    b"both.auto": b"one\r\ntwo\n",
    b"zero.auto": b"one\r\n\0two\r\n",
    b"windows.bin": b"one\r\ntwo\r\n",
    b"a.id": b"$Id$\none\n",
    b"a.subst": b"$Format:%H$\n",
    b"a.u16": "one\ntwo \N{LATIN SMALL LETTER E WITH ACUTE}\n".encode("utf-16-le"),
    b"a.u16b": "one\ntwo \N{LATIN SMALL LETTER E WITH ACUTE}\n".encode("utf-16"),
    b"a.mine": b"Through a filter of the user's.\n",
    b"a.theirs": b"Through a filter of the repository's.\n",
}
FOUNDED = ("odd", "marked", os.fsdecode(GOVERNED))
"""The directories of what a trial is founded on."""
ODD = (
    b"new\nline",
    b"tab\there",
    b'"quoted"',
    b"'single'",
    b"back\\slash",
    b"not utf-8 \xe9\xff",
    b"-rf",
    b"--",
    b"trailing ",
    b" leading",
    b":(glob)**",
    b":!x",
    b"*",
    b"[a-z]",
    b"#comment",
    b"!important",
    b"...",
    b"~",
    b"CON",
    b"e\xcc\x81",
    b"\xc3\xa9",
    b"Case",
    b"case",
    b"x" * 255,
    b"\x01\x7f",
    b"$(touch hacked)",
    b"a;b|c&d",
    b"HEAD",
    b"refs",
    b".gitignored",
)
"""Names that no repository has."""


class User:
    """The user of a repository: Git in it, with the user's own configuration and nothing else of the caller's."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def git(
        self,
        *words: str | bytes | Path,
        ok: bool = True,
        data: bytes = b"",
        given: Mapping[str, str] | None = None,
    ) -> bytes:
        """Run a command of Git, with what is ``given`` in its environment, and return what it says."""
        command = ["git", "-c", "protocol.file.allow=always", *words]
        environ = {**os.environ, **(given or {})}
        done = subprocess.run(command, cwd=self.root, env=environ, input=data, capture_output=True, check=False)
        if done.returncode and ok:
            raise SystemExit(f"{command} ended with {done.returncode}: {os.fsdecode(done.stderr)[-2000:]}")
        return done.stdout

    def listed(self, *words: str | bytes, data: bytes = b"", given: Mapping[str, str] | None = None) -> list[bytes]:
        """What it says, ended by NUL each."""
        return self.git(*words, data=data, given=given).split(b"\0")[:-1]

    def text(self, *words: str | bytes | Path) -> str:
        """What it says, without the end of the line."""
        return os.fsdecode(self.git(*words)).strip()

    def commit(self) -> None:
        """Commit all that is there, and that Git takes in."""
        for at, _, names in os.walk(bytes(self.root)):
            for name in names:
                if stat.S_ISFIFO(os.lstat(path := os.path.join(at, name)).st_mode):
                    os.unlink(path)
        self.git("-c", "core.safecrlf=false", "-c", "advice.addEmbeddedRepo=false", "add", "--all", "--sparse")
        self.git("commit", "--quiet", "--allow-empty", "--no-verify", "-m", "by the user")


class Agent:
    """Makes changes in a repository."""

    def __init__(self, user: User, seed: int) -> None:
        self._user = user
        self._root = bytes(user.root)
        self._random = random.Random(seed)
        self._left: list[bytes] = []
        self._number = 1000 * seed  # names differ from those of an agent with another seed

    def found_on(self) -> None:
        """Commit what changes are made of that the repository does not have: governed files, and odd names."""
        self._write(GOVERNED + b"/.gitattributes", ATTRIBUTES)
        for name, data in WRITTEN.items():
            self._write(GOVERNED + b"/" + name, data)
        for name in ODD:
            self._write(b"odd/" + name, name)
        for name in (b"skipped", b"assumed", b"skipped and gone", b"assumed and gone"):
            self._write(b"marked/" + name, b"as it was\n")
        self._user.git("-c", "core.safecrlf=false", "add", "--force", "--sparse", "--", *FOUNDED)
        self._user.git("commit", "--quiet", "--no-verify", "-m", "what this trial is founded on")

    def work(self) -> int:
        """Make changes of every kind, a few of each; return how many."""
        before = self._number
        tracked = [path for path in self._user.listed("ls-files", "-z") if self._is_file(path)]
        own = (b"odd/", b"marked/", GOVERNED)
        self._left = [path for path in tracked if not path.startswith(own) and path != b".gitattributes"]
        self._random.shuffle(self._left)
        self._rewrite_governed("filter", b"lfs")
        self._rewrite_governed("eol", b"crlf")
        for change in (
            self._rewrite,
            self._rewrite_in_place,
            self._stage,
            self._stage_and_change,
            self._stage_and_take_back,
            self._change_ends_of_lines,
            self._delete,
            self._remove,
            self._untrack,
            self._rename,
            self._move,
            self._turn_mode,
            self._replace_by_link,
            self._replace_by_directory,
            self._replace_by_pipe,
            self._empty,
        ):
            for path in self._some(2):
                self._number += 1
                change(path)
        self._rename_directory()
        self._add()
        self._change_governed()
        self._change_odd()
        self._change_marked()
        self._work_in_submodules()
        self._begin_repositories()
        return self._number - before

    # -- of tracked files ---------------------------------------------------------------------------------------------

    def _rewrite(self, path: bytes) -> None:
        self._write(path + b".tmp", self._edited(path))
        os.rename(self._at(path + b".tmp"), self._at(path))

    def _rewrite_in_place(self, path: bytes) -> None:
        self._write(path, self._edited(path))

    def _rewrite_governed(self, attribute: str, value: bytes) -> None:
        """Rewrite files that an attribute of the repository's own governs; of one of them there is another one, too."""
        told = self._user.listed("check-attr", "-z", "--stdin", attribute, data=b"\0".join(self._left))
        governed = [path for path, found in zip(told[::3], told[2::3], strict=True) if found == value][:4]
        self._left = [path for path in self._left if path not in governed]
        for path in governed:
            self._number += 1
            self._write(path, self._edited(path))
            above, name = os.path.split(path)
            if self._number % 2:
                self._write(os.path.join(above, b"%d " % self._number + name), self._edited(path))
                self._add_to_index(os.path.join(above, b"%d " % self._number + name))

    def _stage(self, path: bytes) -> None:
        self._write(path, self._edited(path))
        self._add_to_index(path)

    def _stage_and_change(self, path: bytes) -> None:
        self._stage(path)
        self._write(path, self._edited(path))

    def _stage_and_take_back(self, path: bytes) -> None:
        before = self._read(path)
        self._stage(path)
        self._write(path, before)

    def _change_ends_of_lines(self, path: bytes) -> None:
        data = self._read(path)
        unix = data.replace(b"\r\n", b"\n")
        self._write(path, unix if unix != data else data.replace(b"\n", b"\r\n"))

    def _delete(self, path: bytes) -> None:
        os.unlink(self._at(path))

    def _remove(self, path: bytes) -> None:
        self._user.git("--literal-pathspecs", "rm", "--quiet", "--force", "--sparse", "--", path)

    def _untrack(self, path: bytes) -> None:
        self._user.git("--literal-pathspecs", "rm", "--quiet", "--force", "--cached", "--sparse", "--", path)

    def _rename(self, path: bytes) -> None:
        os.rename(self._at(path), self._at(path + b" renamed"))

    def _move(self, path: bytes) -> None:
        self._user.git("mv", "--sparse", path, path + b" moved")

    def _turn_mode(self, path: bytes) -> None:
        os.chmod(self._at(path), os.lstat(self._at(path)).st_mode ^ 0o111)

    def _replace_by_link(self, path: bytes) -> None:
        os.unlink(self._at(path))
        os.symlink(self._random.choice([b"nowhere", b"../" * 9 + b"etc", b".", b"odd/\xe9"]), self._at(path))

    def _replace_by_directory(self, path: bytes) -> None:
        os.unlink(self._at(path))
        self._write(path + b"/inner", b"now a directory\n")
        if self._number % 2:
            self._add_to_index(path)

    def _replace_by_pipe(self, path: bytes) -> None:
        os.unlink(self._at(path))
        if not os.path.basename(path).startswith(b".git"):  # (which Git itself would wait for)
            os.mkfifo(self._at(path))

    def _empty(self, path: bytes) -> None:
        os.truncate(self._at(path), 0)

    # -- of everything else -------------------------------------------------------------------------------------------

    def _rename_directory(self) -> None:
        for path in self._left:
            top, slash, _ = path.partition(b"/")
            if slash and top not in (b"odd", b"marked", GOVERNED) and not self._holds_repository(top):
                os.rename(self._at(top), self._at(b"renamed %d " % self._number + top))
                self._left = [each for each in self._left if not each.startswith(top + b"/")]
                self._number += 1
                return

    def _add(self) -> None:
        for how in ("not at all", "add", "intent"):
            for name in (b"new", b"deep/er/new", *ODD[:6]):
                self._number += 1
                path = f"agent {self._number} {how}/".encode() + name
                self._write(path, b"new %d\n" % self._number)
                if how != "not at all":
                    self._add_to_index(path, *(["--intent-to-add"] if how == "intent" else []))
        for number, target in enumerate((b"new", b"nowhere\n", b"/etc/passwd")):
            path = b"agent links %d/link" % self._number + b"%d" % number
            os.makedirs(os.path.dirname(self._at(path)), exist_ok=True)
            os.symlink(target, self._at(path))
            self._add_to_index(path)

    def _change_governed(self) -> None:
        for name in WRITTEN:
            path = GOVERNED + b"/" + name
            data = self._read(path)
            wide = b".u16" in name
            text = f"edit {self._number}".encode("utf-16-le" if wide else "ascii")
            line = text + ("\n".encode("utf-16-le") if wide else self._random.choice([b"\n", b"\r\n"]))
            self._write(path, data + line)
            self._write(GOVERNED + b"/new %d " % self._number + name, data + line)
            self._add_to_index(GOVERNED + b"/new %d " % self._number + name)
            self._number += 2

    def _change_odd(self) -> None:
        for name in self._random.sample(ODD, 12):
            path = b"odd/" + name
            if not self._is_file(path):
                continue
            self._number += 1
            if self._number % 4:
                self._write(path, b"changed %d\n" % self._number)
            else:
                os.unlink(self._at(path))

    def _change_marked(self) -> None:
        for name in (b"skipped", b"assumed", b"skipped and gone", b"assumed and gone"):
            path = b"marked/" + name
            option = "--skip-worktree" if name.startswith(b"skipped") else "--assume-unchanged"
            if os.path.lexists(self._at(path)):
                self._number += 1
                self._user.git("update-index", option, path)
                if name.endswith(b"gone"):
                    os.unlink(self._at(path))
                else:
                    self._write(path, b"changed %d\n" % self._number)

    def _work_in_submodules(self) -> None:
        for path in self.submodules():
            inner = User(self._user.root / os.fsdecode(path))
            files = [name for name in inner.listed("ls-files", "-z") if self._is_file(path + b"/" + name)]
            self._number += 1
            self._write(path + b"/" + self._random.choice(files), b"changed in a submodule\n")
            if self._number % 2:
                inner.git("commit", "--quiet", "--all", "--no-verify", "-m", "in a submodule")
            self._write(path + b"/untracked %d" % self._number, b"new in a submodule\n")

    def _begin_repositories(self) -> None:
        """Repositories that are no submodules: one that is known nowhere, and one that the index knows."""
        for added in (False, True):
            self._number += 1
            path = b"nested %d" % self._number
            self._write(path + b"/inner", b"of another repository\n")
            inner = User(self._user.root / os.fsdecode(path))
            inner.git("init", "--quiet", f"--object-format={self._user.text('rev-parse', '--show-object-format')}")
            inner.commit()
            if added:
                self._user.git("-c", "advice.addEmbeddedRepo=false", "add", "--sparse", "--", path)

    # -- what they are made of ----------------------------------------------------------------------------------------

    def submodules(self) -> list[bytes]:
        """Those that are checked out."""
        staged = self._user.listed("ls-files", "--stage", "-z")
        paths = [line.partition(b"\t")[2] for line in staged if line.startswith(b"160000 ")]
        return [path for path in paths if os.path.lexists(self._at(path + b"/.git")) and not path.startswith(b"nested")]

    def _some(self, count: int) -> list[bytes]:
        return [self._left.pop() for _ in range(min(count, len(self._left) - 1))]

    def _holds_repository(self, top: bytes) -> bool:
        """(Whose ``.git`` names the other one by a relative path.)"""
        return any(path.startswith(top) for path in self.submodules())

    def _edited(self, path: bytes) -> bytes:
        """As most edits do it: another line, and one of the same length."""
        lines = self._read(path).splitlines(keepends=True) or [b""]
        at = self._random.randrange(len(lines))
        end = b"\r\n" if lines[at].endswith(b"\r\n") else b"\n"
        if self._number % 2:
            lines[at] = lines[at].rstrip(b"\r\n").swapcase() + end
        else:
            lines.insert(at, b"edit %d: %x" % (self._number, self._random.getrandbits(64)) + end)
        return b"".join(lines)

    def _add_to_index(self, path: bytes, *words: str) -> None:
        self._user.git("-c", "core.safecrlf=false", "--literal-pathspecs", "add", "-f", "--sparse", *words, "--", path)

    def _is_file(self, path: bytes) -> bool:
        return os.path.isfile(self._at(path)) and not os.path.islink(self._at(path))

    def _at(self, path: bytes) -> bytes:
        return os.path.join(self._root, path)

    def _read(self, path: bytes) -> bytes:
        with open(self._at(path), "rb") as file:
            return file.read()

    def _write(self, path: bytes, data: bytes) -> None:
        os.makedirs(os.path.dirname(self._at(path)), exist_ok=True)
        with open(self._at(path), "wb") as file:
            file.write(data)
