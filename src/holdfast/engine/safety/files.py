"""Rules for programs whose arguments name the files that they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.safety.places import verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.safety.call import Call
    from holdfast.engine.safety.words import Word


def rm(call: Call) -> None:
    """Removes files, or trees."""
    options = call.options("f force; i; I; r R recursive; d dir; v verbose; one-file-system; no-preserve-root; x")
    recursive = options.has("r") or options.uncertain
    call.change(options.operands, "erase" if recursive else "remove", "removes")


def remove_each(call: Call) -> None:
    """``rmdir``, ``unlink``: remove one thing each."""
    call.change(call.options("p parents; v verbose; ignore-fail-on-non-empty").operands, "remove", "removes")


def mkdir(call: Call) -> None:
    """Makes directories."""
    options = call.options("m= mode=; p parents; v verbose; Z; context=")
    call.change(options.operands, "write", "makes")


def touch(call: Call) -> None:
    """Makes files, or sets their times."""
    options = call.options("a; c no-create; d= date=; f; h no-dereference; m; r= reference=; t=; time=")
    call.change(options.operands, "write", "makes or touches")


def truncate(call: Call) -> None:
    """Cuts files off."""
    options = call.options("c no-create; o io-blocks; r= reference=; s= size=")
    call.change(options.operands, "write", "cuts off")


def tee(call: Call) -> None:
    """Writes its input to files."""
    options = call.options("a append; i ignore-interrupts; p; output-error=")
    call.change(options.operands, "write", "writes")


_COPY = """
        t= target-directory=; T no-target-directory; S= suffix=; r R recursive; a archive; f force; n no-clobber; i
        interactive; v verbose; u update; p; preserve=; l link; s symbolic symbolic-link; d; L dereference; P
        no-dereference; H; x; b; backup=; reflink=; sparse=; remove-destination; strip-trailing-slashes; m= mode=; o=
        owner=; g= group=; D; C; directory; c; no-preserve=; parents; Z; context=; strip; strip-program=
    """


def _goals(call: Call) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    """The sources and the targets of a program that is called as ``cp``."""
    options = call.options(_COPY)
    into = options.value("t")
    if into is not None:
        return options.operands, (into,)
    return options.operands[:-1], options.operands[-1:]


def cp(call: Call) -> None:
    """Writes the last argument. What comes with all below it may take the place of ignored files."""
    _, targets = _goals(call)
    call.change(targets, "write", "writes")
    if call.options(_COPY).has("r", "a"):
        call.note("changes", "copies all below, also onto ignored files, which are in no checkpoint", reversible=False)


def install(call: Call) -> None:
    """Copies files, or makes directories."""
    options = call.options(_COPY.replace("d;", "d directory;").replace(" directory; c", " c"))
    into = options.value("t")
    made = options.operands if options.has("d") else (into,) if into is not None else options.operands[-1:]
    call.change(made, "write", "writes")


def mv(call: Call) -> None:
    """Takes the sources away, and writes the target."""
    sources, targets = _goals(call)
    for word in sources:
        # A directory comes along with all that is in it, and can as well be moved back from a checkpoint.
        found = verdict(word, "remove", call.shell)
        note = f": {found.note}" if found.note else ""
        call.note(found.level, f"moves {word.shown} away{note}", at=word, reversible=found.reversible)
    call.change(targets, "write", "writes")
    for word in targets:
        if word.text == "/dev/null":
            call.note("dangerous", "moves files to where they are lost", at=word)


def ln(call: Call) -> None:
    """Makes a link."""
    _, targets = _goals(call)
    call.change(targets, "write", "makes a link")


_SWEEP = """
        R recursive; f silent quiet; v verbose; c changes; reference=; from=; h no-dereference; dereference; H; L; P;
        preserve-root; no-preserve-root
    """


def mode(call: Call) -> None:
    """``chmod``, ``chown``, ``chgrp``: change what files are allowed to whom."""
    # A mode may begin with a dash, and is then no option: "-x", "-rw".
    modes = [word for word in call.arguments if _is_mode(word)] if call.program == "chmod" else []
    words = [word for word in call.arguments if word not in modes]
    options = call._replace(arguments=tuple(words)).options(_SWEEP)
    files = options.operands if options.has("reference") or modes else options.operands[1:]
    owner = call.program != "chmod"
    for word in files:
        found = verdict(word, "sweep" if options.has("R") else "write", call.shell)
        back = found.reversible and not owner
        note = f": {found.note}" if found.note else ": checkpoints hold no owners" if owner else ""
        level = "risky" if owner and found.level == "changes" else found.level
        what = "the owner or group" if owner else "the mode"
        call.note(level, f"changes {what} of {word.shown}{note}", at=word, reversible=back)


def _is_mode(word: Word) -> bool:
    text = word.text or ""
    return (
        text.startswith("-") and len(text) > 1 and not text.startswith("--") and set(text[1:]) <= set("rwxXstugo,+-=")
    )


def dd(call: Call) -> None:
    """Copies raw, to what ``of=`` names."""
    for word in call.arguments:
        if word.lead.startswith("of="):
            call.change((word.after(3),), "write", "writes")
        elif not word.lead:
            call.note("unknown", "what it writes to cannot be told", at=word)


def shred(call: Call) -> None:
    """Overwrites files so that nothing of them is left."""
    options = call.options("f force; n= iterations=; random-source=; s= size=; u; remove=; v verbose; x exact; z zero")
    call.change(options.operands, "remove", "destroys")


def outputs(spec: str, *values: str, also: str = "", runs: str = "") -> Callable[[Call], None]:
    """A rule for a program that reads, and writes only to what the options ``values`` name.

    With one of the options ``also`` it changes what it is given; with one of ``runs`` it runs another program.
    """

    def rule(call: Call) -> None:
        options = call.options(spec)
        for name in values:
            call.change(options.values(name), "write", "writes")
        if options.has(*also.split()):
            call.change(options.operands, "write", "changes")
        if options.has(*runs.split()):
            call.note("unknown", "runs a program that an option names")
        if options.uncertain and values:
            call.note("unknown", "whether it writes a file cannot be told")

    return rule


def second(call: Call) -> None:
    """``uniq``: the second operand is written."""
    options = call.options("c count; d; D; f= skip-fields=; i; s= skip-chars=; u; w= check-chars=; z")
    call.change(options.operands[1:2], "write", "writes")


def in_place(call: Call) -> None:
    """Changes each file that it is given: ``gzip``, ``dos2unix`` and such."""
    options = call.options(
        "c stdout to-stdout; t test; l list; k keep; d decompress; f force; q; v; h help; n; N; T=; S="
    )
    if not options.has("c", "t", "l", "h"):
        call.change(options.operands, "remove" if not options.has("k") else "write", "replaces")


def tar(call: Call) -> None:
    """Packs, unpacks or lists."""
    words = list(call.arguments)
    if words and words[0].text and not words[0].text.startswith("-"):
        # The oldest form: letters without a dash.
        words[0] = words[0]._replace(shape="-" + words[0].shape)
    options = call._replace(arguments=tuple(words)).options(
        """
            c create; x extract get; t list; r append; u update; A; d diff; f= file=; C= directory=; z gzip; j bzip2;
            J xz; v verbose; p; k; O to-stdout; I= use-compress-program=; T= files-from=; X= exclude-from=; exclude=;
            strip-components=; transform=; to-command=; checkpoint-action=; remove-files; zstd;
            rsh-command= rmt-command=; F= info-script= new-volume-script=; index-file= volno-file=; g=
            listed-incremental=; a auto-compress; h; P
            absolute-names; m; no-same-owner; wildcards; W; n; w; checkpoint=
        """
    )
    if options.has("I", "to-command", "checkpoint-action", "rsh-command", "F"):
        call.note("unknown", "runs a program for what is in the archive")
    for name in ("index-file", "g"):
        call.change(options.values(name), "write", "writes")
    if options.has("x"):
        into = options.value("C")
        if not options.has("O"):
            _unpacked(call, into)
        if options.has("P"):
            call.note("risky", "writes wherever the archive says")
    elif options.has("c", "r", "u", "A"):
        call.change([word for word in options.values("f") if word.text != "-"], "write", "writes")
        if options.has("remove-files"):
            call.change(options.operands, "erase", "removes")
    elif not options.has("t", "d") and call.arguments:
        call.note("unknown", "what it is to do cannot be told")


def _unpacked(call: Call, into: Word | None) -> None:
    call.note("changes", "may unpack onto ignored files, which are in no checkpoint", reversible=False)
    if into is not None:
        call.change((into,), "write", "unpacks into")
    else:
        here(call, "unpacks an archive here")


def here(call: Call, does: str) -> None:
    """Say that it ``does`` something in the directory where it runs."""
    from holdfast.engine.safety.words import Word

    found = verdict(Word(".", *call.span), "write", call.shell)
    note = f": {found.note}" if found.note else ""
    call.note(found.level, f"{does}{note}", reversible=found.reversible)


def unzip(call: Call) -> None:
    """Unpacks or lists."""
    options = call.options("d=; l; t; p; v; Z; o; q; n; j; x=; P=; :")
    if options.has(":"):
        call.note("risky", "writes wherever the archive says")
    if not options.has("l", "t", "p", "v", "Z"):
        _unpacked(call, options.value("d"))


def _letters(word: Word, letters: str) -> bool:
    return word.lead.startswith("-") and not word.lead.startswith("--") and letters in word.lead


def zip_(call: Call) -> None:
    """Packs into its first operand."""
    options = call.options(
        """
            r recurse-paths; q; v; j; m move; u; d; x= exclude=; i= include=; e; P=; T; y; 9; 0; 1; O= output-file=;
            b= temp-path=; t=; n=
        """
    )
    call.change(options.operands[:1], "write", "writes")
    call.change(options.values("O"), "write", "writes")
    if call.named("unzip-command") or any(_letters(word, "TT") for word in call.arguments):
        call.note("unknown", "runs a program to test what it has packed")
    if call.named("logfile-path") or any(_letters(word, "lf") for word in call.arguments):
        call.note("unknown", "keeps a log in a file that an option names")
    if options.has("m"):
        call.change(options.operands[1:], "erase", "removes")


def rsync(call: Call) -> None:
    """Copies to its last operand, which may be on another machine."""
    options = call.options(
        """
            a archive; v verbose; r recursive; z compress; n dry-run; delete delete-before delete-after delete-during
            delete-excluded; e= rsh=; exclude=; include=; exclude-from=; include-from=; files-from=; P; progress; h;
            u; c; l; p; t; g; o; D; H; X; A; x; R; remove-source-files; bwlimit=; stats; rsync-path=; f= filter=; q;
            W; S; i; link-dest=; backup-dir=; temp-dir= partial-dir= T=;
            write-batch= only-write-batch=; log-file=; chmod=; chown=; port=; timeout=;
            max-size=; min-size=; info=
        """
    )
    if options.has("e", "rsync-path"):
        call.note("unknown", "runs a program to reach another machine")
    for name in ("log-file", "write-batch"):
        call.change(options.values(name), "write", "writes")
    if options.has("n") or len(options.operands) < 2:
        return
    target = options.operands[-1]
    for name in ("backup-dir", "temp-dir"):
        call.change(options.values(name), "write", "writes into")
    if options.has("remove-source-files"):
        call.change(options.operands[:-1], "erase", "removes")
    if ":" in target.lead.split("/")[0]:
        call.note("risky", f"writes to another machine: {target.shown}", at=target)
    else:
        call.change((target,), "erase" if options.has("delete") else "write", "writes")


def sed(call: Call) -> None:
    """Edits a stream, or with ``-i`` files."""
    options = call.options(
        """
            n quiet silent; e= expression=; f= file=; E r regexp-extended; i in-place; I=; s separate; z; u; l=;
            posix; sandbox; debug; help; version; follow-symlinks; b
        """
    )
    scripts = [*options.values("e")]
    files = options.operands
    if not scripts and not options.has("f"):
        scripts, files = list(files[:1]), files[1:]
    if options.has("i", "I"):
        call.change(files, "write", "edits")
    if options.has("f"):
        call.note("unknown", "runs a script of its own language from a file")
    if options.has("sandbox"):
        return
    for script in scripts:
        if script.text is None:
            call.note("unknown", "what the script does cannot be told", at=script)
        elif not _only_edits(script.text):
            call.note("unknown", "the script may run commands or write files", at=script)


_ALONE = frozenset("pPdDqQnNgGhHxl={}!#;$,~+0123456789 \t\n")


def _only_edits(script: str) -> bool:
    """True if a script of ``sed`` surely neither runs a command (``e``) nor writes a file (``w``)."""
    at = 0
    while at < len(script):
        one = script[at]
        at += 1
        if one in "sy" or one == "/" or one == "\\":
            parts = 2 if one in "sy" else 1
            mark = script[at : at + 1] if one != "/" else "/"
            at += one != "/"
            for _ in range(parts):
                while at < len(script) and script[at] != mark:
                    at += 2 if script[at] == "\\" else 1
                at += 1
            flags = at
            while one in "sy" and at < len(script) and script[at] not in ";}\n \t":
                at += 1
            if any(flag not in "gpiImM0123456789" for flag in script[flags:at]) and one in "sy":
                return False
        elif one in "aic":
            # Text up to the end of the line.
            end = script.find("\n", at)
            at = len(script) if end < 0 or "\\\n" in script[at:] else end
        elif one not in _ALONE:
            return False
    return True


def awk(call: Call) -> None:
    """Reads; but its language writes files and runs commands too."""
    options = call.options(
        "F= field-separator=; v= assign=; f= file=; i= include=; e= source=; E= exec=; l= load=; W=; "
        "d dump-variables; o pretty-print; p profile; D debug"
    )
    if options.has("f", "i", "E", "l", "W"):
        call.note("unknown", "runs a script of its own language, or a library, from a file")
        return
    if options.has("d", "o", "p", "D"):
        call.note("unknown", "may write a file that an option names")
    for program in options.values("e") or options.operands[:1]:
        text = program.text
        if text is None or any(part in text for part in (">", "|", "system", "getline", "@")):
            call.note("unknown", "the script may run commands or write files", at=program)


def patch(call: Call) -> None:
    """Changes what a patch names, or what it is given."""
    options = call.options(
        "p= strip=; i= input=; d= directory=; R reverse; N forward; dry-run; o= output=; b; s; f; E; t"
    )
    if options.has("dry-run"):
        return
    target = options.operands[:1] or tuple(options.values("d"))
    if target:
        call.change(target, "write", "changes")
    else:
        here(call, "changes files here as a patch says")
    call.change(options.values("o"), "write", "writes")


def xxd(call: Call) -> None:
    """Shows bytes, or writes its second operand."""
    options = call.options(
        "r revert; p; ps; c= cols=; g=; l= len=; s= seek=; u; i; b; e; o=; a; E; n=; postscript; plain"
    )
    call.change(options.operands[1:2], "write", "writes")


_SPLIT = """
        a= suffix-length=; additional-suffix=; b= bytes=; C= line-bytes=; d; e; filter=; hex-suffixes; l= lines=; n=
        number=; numeric-suffixes; t= separator=; u; verbose; x
    """
_CSPLIT = "b= suffix-format=; f= prefix=; k; m; n= digits=; s quiet silent; z; suppress-matched"


def split(call: Call) -> None:
    """Writes pieces here."""
    if call.named("filter"):
        call.note("unknown", "runs a command for each piece")
    options = call.options(_SPLIT if call.program == "split" else _CSPLIT)
    prefixes = options.operands[1:2] if call.program == "split" else options.values("f")
    if prefixes:
        call.change(prefixes, "write", "writes pieces that begin with")
        return
    here(call, "writes pieces of a file here")


def mktemp(call: Call) -> None:
    """Makes a new file or directory, usually in the temporary directory."""
    options = call.options("d directory; p= tmpdir=; t; u dry-run; q; suffix=")
    if options.has("u"):
        return
    call.note("risky", "makes something new in a temporary directory: outside of the workspace")
