"""What the commands of Git do.

No checkpoint holds `.git`: whatever writes there is risky, also where Git itself would know a way back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.safety.files import here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.engine.safety.call import Call

_GLOBAL = """
        C=; c=; git-dir=; work-tree=; exec-path=; namespace=; p paginate; P no-pager; bare; no-replace-objects;
        literal-pathspecs; no-optional-locks; config-env=; super-prefix=; v version; h help
    """
# Settings that only change how something looks, or who is said to have done it.
_HARMLESS_SETTINGS = ("user.", "color.", "advice.", "init.defaultbranch", "core.quotepath", "core.abbrev", "log.",
                      "safe.", "commit.gpgsign", "tag.gpgsign", "gc.auto", "protocol.version", "http.",
                      "diff.renames")  # fmt: skip

_READS = frozenset(
    (
        "status", "log", "show", "blame", "annotate", "ls-files", "ls-tree", "rev-parse", "rev-list", "cat-file",
        "describe", "shortlog", "name-rev", "merge-base", "for-each-ref", "show-ref", "show-branch", "count-objects",
        "var", "version", "help", "whatchanged", "check-ignore", "check-attr", "check-ref-format", "ls-remote", "fsck",
        "diff-tree", "diff-index", "diff-files", "range-diff", "cherry", "verify-commit", "verify-tag",
        "get-tar-commit-id", "merge-tree", "patch-id", "stripspace", "column", "check-mailmap",
    )
)  # fmt: skip

_KEEPS = "writes the Git repository, which is in no checkpoint"
_WRITES: Mapping[str, str] = {
    "add": _KEEPS, "stage": _KEEPS, "commit": _KEEPS, "init": _KEEPS, "notes": _KEEPS, "fetch": _KEEPS,
    "update-index": _KEEPS, "write-tree": _KEEPS, "read-tree": _KEEPS, "commit-tree": _KEEPS, "hash-object": _KEEPS,
    "pack-refs": _KEEPS, "repack": _KEEPS, "maintenance": _KEEPS, "mktree": _KEEPS, "bundle": _KEEPS, "replace": _KEEPS,
    "symbolic-ref": _KEEPS, "multi-pack-index": _KEEPS, "commit-graph": _KEEPS, "rerere": _KEEPS,
    "pull": "merges what it fetches into the tree and the Git repository",
    "merge": "merges into the tree and the Git repository",
    "cherry-pick": "applies commits to the tree and the Git repository",
    "revert": "applies commits to the tree and the Git repository",
    "am": "applies patches to the tree and the Git repository",
    "rebase": "rewrites commits, in the tree and the Git repository",
    "switch": "changes the tree, and what is checked out",
    "mv": "moves files, and writes the Git repository",
    "rm": "removes files, and writes the Git repository",
    "sparse-checkout": "removes files from the tree or brings them back",
    "bisect": "changes what is checked out",
    "clone": "makes a Git repository, which is in no checkpoint",
    "update-ref": "changes or removes what a name stands for",
    "prune-packed": _KEEPS,
    "lfs": "fetches, or writes the Git repository",
}  # fmt: skip


def git(call: Call) -> None:
    """Git: its options, and then by command."""
    options = call.options(_GLOBAL, first=True)
    for setting in options.values("c"):
        if not _harmless(setting.text):
            call.note("unknown", "a setting given on the way may run any program", at=setting)
    if options.has("exec-path", "config-env", "git-dir", "work-tree"):
        call.note("unknown", "works with another repository or other programs than the usual ones")
    if not options.operands:
        return
    name, shell = options.operands[0].text, call.shell
    if name is None:
        call.note("unknown", "which command of Git it is cannot be told", at=options.operands[0])
        return
    directory = options.value("C")
    if directory is not None:
        shell = shell.copy()
        shell.go(directory.text)
        shell.cwds = shell.cwd_if_well
    inner = call._replace(program=f"git {name}", arguments=options.operands[1:], shell=shell)
    if any(word.text in ("-h", "--help") for word in inner.arguments):
        return
    _other_side(inner, name)
    rule = _RULES.get(name)
    if rule is not None:
        rule(inner)
    elif name in _WRITES:
        inner.note("risky", _WRITES[name])
    elif name in _READS:
        _output(inner)
    else:
        inner.note("unknown", "no command of Git that is known here: it may be an alias for anything")


_REMOTE = frozenset(("archive", "clone", "fetch", "ls-remote", "pull", "push", "remote", "submodule"))


def _other_side(call: Call, name: str) -> None:
    """The program on the other side is one of this machine where the other repository is."""
    if name not in _REMOTE:
        return
    word = call.named("upload-pack", "receive-pack", "exec")
    if word is not None:
        call.note("unknown", "runs a program that an option names, also on this machine", at=word)
    for word in call.arguments:
        if "ext::" in word.shape:
            call.note("unknown", "runs a program to reach another repository", at=word)


def _harmless(setting: str | None) -> bool:
    if setting is None:
        return False
    name, _, value = setting.partition("=")
    return name.lower().startswith(_HARMLESS_SETTINGS) or (
        name.lower() == "core.pager" and value in ("", "cat", "less")
    )


def _output(call: Call) -> None:
    """Reads; but ``--output`` writes a file, and some run programs."""
    options = call.options("output=; ext-diff; O= open-files-in-pager=; textconv")
    call.change(options.values("output"), "write", "writes")
    if options.has("O") and call.program == "git grep":
        call.note("unknown", "runs a program")
    if options.has("ext-diff"):
        call.note("unknown", "runs a program to compare")


def _push(call: Call) -> None:
    options = call.options(
        """
            f force; force-with-lease; force-if-includes; mirror; d delete; n dry-run; prune; all branches; tags;
            follow-tags; u set-upstream; o= push-option=; receive-pack= exec=; repo=; atomic; q; v; no-verify; thin;
            porcelain
        """
    )
    if options.has("n"):
        return
    refs = [word.text or word.lead for word in options.operands[1:]]
    if options.has("f", "force-with-lease", "mirror") or any(ref.startswith("+") for ref in refs):
        call.note("dangerous", "overwrites the history that others have")
    elif options.has("d", "prune") or any(ref.startswith(":") for ref in refs):
        call.note("dangerous", "removes what others have")
    else:
        call.note("risky", "publishes commits, which cannot be taken back")


def _reset(call: Call) -> None:
    options = call.options("hard; soft; mixed; merge; keep; q; p patch; N")
    if options.has("hard", "merge", "keep"):
        call.note("risky", "overwrites what is not committed, and moves the branch")
    else:
        call.note("risky", _KEEPS)


def _clean(call: Call) -> None:
    options = call.options("f force; d; x; X; n dry-run; q; e= exclude=; i")
    if options.has("n"):
        return
    if options.has("x", "X"):
        call.note("risky", "removes ignored files, which are in no checkpoint")
    elif options.has("f", "i"):
        call.note("risky", "removes all files that Git does not know", reversible=True)
    elif options.uncertain:
        call.note("risky", "may remove files, ignored ones too")


def _checkout(call: Call) -> None:
    options = call.options("b=; B=; f force; p patch; t track; q; orphan=; detach; ours; theirs; m merge; conflict=; l")
    texts = [word.text for word in call.arguments]
    paths = "--" in texts or any(text in (".", "./") or (text or "").startswith(":/") for text in texts)
    if paths and not options.has("b", "B", "f"):
        call.note("risky", "overwrites files with what Git has of them", reversible=True)
    elif options.has("f"):
        call.note("risky", "overwrites what is not committed, and changes what is checked out")
    else:
        call.note("risky", "changes the tree, and what is checked out")


def _restore(call: Call) -> None:
    options = call.options("s= source=; S staged; W worktree; p patch; q; ours; theirs; m merge")
    if options.has("S"):
        call.note("risky", "overwrites files or the index with what Git has of them")
    else:
        call.note("risky", "overwrites files with what Git has of them", reversible=True)


def _branch(call: Call) -> None:
    options = call.options(
        """
            d delete; D; m move; M; c copy; C; f force; l list; a all; r remotes; v verbose; q; u= set-upstream-to=; t
            track; unset-upstream; contains; no-contains; merged; no-merged; show-current; sort=; format=; points-at=;
            edit-description
        """
    )
    if options.has("D"):
        call.note("risky", "removes a branch, also if nothing else has its commits")
    elif options.has("d", "m", "M", "c", "C", "f", "u", "unset-upstream", "edit-description") or (
        options.operands and not options.has("l", "a", "r", "contains", "no-contains", "merged", "no-merged")
    ):
        call.note("risky", _KEEPS)


def _tag(call: Call) -> None:
    options = call.options(
        "d delete; l list; n; contains; merged; no-merged; sort=; format=; points-at=; v; m=; F=; a; s; f; u="
    )
    if options.has("d", "f"):
        call.note("risky", "removes or replaces a tag")
    elif options.operands and not options.has("l", "n", "contains", "merged", "no-merged", "points-at", "v"):
        call.note("risky", _KEEPS)


def _stash(call: Call) -> None:
    which = call.arguments[0].text if call.arguments else "push"
    if which in ("drop", "clear"):
        call.note("dangerous", "throws away what was stashed, for good")
    elif which not in ("list", "show"):
        call.note("risky", "moves changes between the tree and the Git repository")


def _reflog(call: Call) -> None:
    if call.arguments and call.arguments[0].text in ("expire", "delete"):
        call.note("dangerous", "forgets the way back to earlier commits")


def _gc(call: Call) -> None:
    options = call.options("prune=; aggressive; auto; force; q; n dry-run; expire=; v")
    if call.program == "git prune" and options.has("n"):
        return
    if call.program == "git prune" or options.has("prune"):
        call.note("dangerous", "deletes commits that nothing names, for good")
    else:
        call.note("risky", _KEEPS)


def _filter(call: Call) -> None:
    call.note("dangerous", "rewrites the whole history")


def _remote(call: Call) -> None:
    which = next((word.text for word in call.arguments if not word.lead.startswith("-")), "show")
    if which not in ("show", "get-url"):
        call.note("risky", _KEEPS)


def _config(call: Call) -> None:
    options = call.options(
        """
            get; get-all; get-regexp; get-urlmatch; l list; e edit; unset; unset-all; add; replace-all;
            rename-section; remove-section; global; system; local; worktree; f= file=; type=; bool; int; path; z null;
            name-only; show-origin; show-scope; default=; get-color; get-colorbool; blob=; includes; no-includes
        """
    )
    asks = options.has("get", "get-all", "get-regexp", "get-urlmatch", "l", "get-color", "get-colorbool")
    first = options.operands[0].text if options.operands else None
    changes = options.has("e", "unset", "unset-all", "add", "replace-all", "rename-section", "remove-section")
    if not asks and first not in ("get", "list") and (changes or len(options.operands) != 1):
        where = "outside of the workspace" if options.has("global", "system") else "in the Git repository"
        call.note("risky", f"changes settings of Git {where}; some of them run programs")


def _listed(call: Call) -> None:
    """``worktree``, ``submodule``: some of their commands only read."""
    which = next((word.text for word in call.arguments if not word.lead.startswith("-")), "status")
    if which in ("list", "status", "summary"):
        return
    if which == "foreach":
        call.note("unknown", "runs a command in every submodule")
    elif call.program == "git worktree":
        call.note("risky", "makes or removes another directory, and writes the Git repository")
    else:
        call.note("risky", "changes submodules, and writes the Git repository")


def _apply(call: Call) -> None:
    options = call.options("check; stat; numstat; summary; index; cached; 3 3way; R reverse; p=; directory=; reject; v")
    if options.has("check", "stat", "numstat", "summary"):
        return
    if options.has("index", "cached", "3"):
        call.note("risky", "applies a patch to the tree and the Git repository")
    else:
        here(call, "changes files here as a patch says")


def _format_patch(call: Call) -> None:
    options = call.options("o= output-directory=; stdout; n; 1; root; subject-prefix=; v=; cover-letter")
    if options.has("o"):
        call.change(options.values("o"), "write", "writes patches into")
    elif not options.has("stdout"):
        here(call, "writes patches here")


def _archive(call: Call) -> None:
    options = call.options("o= output=; format=; prefix=; remote=; exec=; l list; v; add-file=; worktree-attributes")
    call.change(options.values("o"), "write", "writes")


def _rm(call: Call) -> None:
    options = call.options("r; f force; cached; n dry-run; q; ignore-unmatch")
    if not options.has("n"):
        call.note("risky", _KEEPS if options.has("cached") else _WRITES["rm"])


def _clone(call: Call) -> None:
    options = call.options(
        """
            u= upload-pack=; c= config=; template=; b= branch= revision=; o= origin=; j= jobs=; depth=; reference=
            reference-if-able=; separate-git-dir=; filter=; shallow-since=; shallow-exclude=; server-option=;
            bundle-uri=; l; q; v; n; s
        """
    )
    if options.has("u"):
        call.note("unknown", "runs a program that an option names, also on this machine")
    if options.has("template") or any(not _harmless(word.text) for word in options.values("c")):
        call.note("unknown", "a setting or a hook that is given on the way may run any program")
    call.change(options.values("separate-git-dir"), "write", "writes")
    call.change(options.operands[1:2], "write", "writes")
    call.note("risky", _WRITES["clone"])


def _rebase(call: Call) -> None:
    options = call.options("x= exec=; s= strategy=; X= strategy-option=; C=; onto=; i; p; f; q; v; r; S")
    for word in options.values("x"):
        call.script(word, call.shell.copy(), "a command for each commit")
    call.note("risky", _WRITES["rebase"])


def _bisect(call: Call) -> None:
    words = call.arguments
    if words and words[0].text == "run":
        call.run(words[1:], call.shell.copy())
    call.note("risky", _WRITES["bisect"])


_RULES: Mapping[str, Callable[[Call], None]] = {
    "push": _push, "reset": _reset, "clean": _clean, "checkout": _checkout, "restore": _restore, "branch": _branch,
    "tag": _tag, "stash": _stash, "reflog": _reflog, "gc": _gc, "prune": _gc, "filter-branch": _filter,
    "filter-repo": _filter, "remote": _remote, "config": _config, "worktree": _listed, "submodule": _listed,
    "apply": _apply, "format-patch": _format_patch, "archive": _archive, "rm": _rm, "diff": _output,
    "grep": _output, "clone": _clone, "rebase": _rebase, "bisect": _bisect,
}  # fmt: skip
