"""Rules for programs that run other programs: these are looked into."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.engine.safety import variables
from holdfast.engine.safety.places import kinds
from holdfast.engine.safety.shell import MAX_VALUE
from holdfast.engine.safety.words import STAR, UNKNOWN, Word, as_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.safety.call import Call
    from holdfast.engine.safety.options import Options
    from holdfast.engine.safety.shell import Shell


def before(spec: str = "", operands: int = 0) -> Callable[[Call], None]:
    """A rule for a program such as ``nice``: options, then so many ``operands``, then the command."""

    def rule(call: Call) -> None:
        options = call.options(spec, first=True)
        call.run(options.operands[operands:])

    return rule


def env(call: Call) -> None:
    """Runs a command with other variables, or shows them."""
    options = call.options(
        "i ignore-environment; u= unset=; C= chdir=; S= split-string=; v; 0 null; block-signal; default-signal",
        first=True,
    )
    shell = call.shell.copy()
    if options.has("C"):
        directory = options.value("C")
        shell.go(None if directory is None else directory.text)
        shell.cwds = shell.cwd_if_well
    words = list(options.operands)
    while words and "=" in words[0].lead:
        name, _, _ = words[0].lead.partition("=")
        assign(call, shell, name, words.pop(0).after(len(name) + 1).shape)
    for word in options.values("S"):
        call.script(word, shell, "a command")
    if words and not words[0].lead and words[0].text is None:
        call.note("unknown", "what it runs cannot be told", at=words[0])
    else:
        call.run(words, shell)


def assign(call: Call, shell: Shell, name: str, shape: str) -> None:
    """Give a variable a value in ``shell``, and say so if that changes what programs are run."""
    shape = shape if len(shape) <= MAX_VALUE else UNKNOWN
    same = UNKNOWN not in shape and shape == shell.value(name)
    shell.variables[name] = shape
    if name == "PATH":
        parts = shape.split(":")
        if UNKNOWN in shape or any(
            not part.startswith("/") or f"{part}/".startswith(f"{shell.root}/") for part in parts
        ):
            shell.shadowed = True
            call.note("unknown", "programs may then be others than their names say: PATH is changed")
    elif not same and variables.runs(name, shape):
        shell.shadowed = shell.shadowed or variables.shadows(name)
        call.note("unknown", f"the variable {name} changes what programs run")
    elif "$(" in shape or "`" in shape:
        call.note("unknown", f"the value of {name} holds a command, which `$((…))`, an index or `${{…@P}}` runs")


def index(call: Call, words: Sequence[Word]) -> None:
    """An index is evaluated, also one that stands in a text: ``test -v 'a[$(date)]'`` runs a command."""
    for word in words:
        if word.text is not None and "[" in word.text and ("$(" in word.text or "`" in word.text):
            call.note("unknown", "what is in an index may be run", at=word)


def xargs(call: Call) -> None:
    """Runs a command with arguments that it reads."""
    options = call.options(
        """
            0 null; a= arg-file=; d= delimiter=; E=; e; I= replace=; i; L= max-lines=; l; n= max-args=; P= max-procs=;
            p; r no-run-if-empty; s= max-chars=; t verbose; x exit; show-limits; process-slot-var=
        """,
        first=True,
    )
    mark = options.value("I")
    words = options.operands
    if mark is not None and mark.text:
        words = tuple(word._replace(shape=word.shape.replace(mark.text, UNKNOWN)) for word in words)
    else:
        words = (*words, Word(UNKNOWN, *call.span, many=True))
    if len(words) > 1 or (mark is not None and words):
        call.run(words)


_FIND_VALUES = frozenset(
    (
        "-amin", "-anewer", "-atime", "-cmin", "-cnewer", "-context", "-ctime", "-fstype", "-gid", "-group", "-ilname",
        "-iname", "-inum", "-ipath", "-iregex", "-iwholename", "-links", "-lname", "-maxdepth", "-mindepth", "-mmin",
        "-mtime", "-name", "-newer", "-path", "-perm", "-printf", "-regex", "-regextype", "-samefile", "-size", "-type",
        "-uid", "-used", "-user", "-wholename", "-xtype", "-files0-from",
    )
)  # fmt: skip


def find(call: Call) -> None:
    """Looks for files; may delete them, or run a command for each."""
    words = list(call.arguments)
    at = 0
    while at < len(words) and (words[at].text in ("-H", "-L", "-P") or _is_place(words[at])):
        at += 1
    places = [word for word in words[:at] if not word.lead.startswith("-")] or [Word(".", *call.span)]
    name_of_all = _only_name([word.text for word in words[at:]])
    found = [_found_in(place, name_of_all, call.shell) for place in places]
    while at < len(words):
        word = words[at]
        name = word.text
        at += 1
        if name is None:
            if word.many:
                call.note("unknown", "what it does with what it finds cannot be told", at=word)
        elif name == "-delete":
            call.change(found, "remove", "removes what it finds in")
        elif name in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((to for to in range(at, len(words)) if words[to].text in (";", "+")), len(words))
            _for_each(call, words[at:end], found)
            at = end + 1
        elif name in ("-fprint", "-fprint0", "-fls", "-fprintf"):
            call.change(words[at : at + 1], "write", "writes")
            at += 2 if name == "-fprintf" else 1
        elif name in _FIND_VALUES or name.startswith("-newer"):
            at += 1


def _is_place(word: Word) -> bool:
    return not word.lead.startswith(("-", "(", "!")) and not (word.many and word.text is None)


def _only_name(texts: list[str | None]) -> str:
    """What the names of all that is found match; ``*`` if that is not simply said."""
    name = next((after for one, after in pairwise(texts) if one in ("-name", "-iname")), None)
    simple = name and not {"-o", "-or", "-not", "!", ",", None}.intersection(texts) and "/" not in name
    return name if name and simple and "\\" not in name else "*"


def _found_in(place: Word, name: str, shell: Shell) -> Word:
    # Whatever its name, what is not in the workspace should not be found.
    inside = set(kinds(place.shape, shell)) <= {"workspace", "inside", "ignored"}
    pattern = as_pattern(name) if inside else STAR
    return place._replace(shape=f"{place.shape.rstrip('/')}/{pattern}", many=True)


def _for_each(call: Call, command: list[Word], found: list[Word]) -> None:
    words: list[Word] = []
    for word in command:
        if word.text == "{}":
            words += found
        elif "{}" in word.shape:
            words.append(word._replace(shape=word.shape.replace("{}", UNKNOWN)))
        else:
            words.append(word)
    call.run(words)


def shell(call: Call) -> None:
    """``sh``, ``bash`` and such: run a text, a file, or what they read."""
    options = call.options(
        """
            c; l login; i; e; u; x; v; s; n; o=; O=; p; f; norc; noprofile; rcfile= init-file=; posix; r; version;
            help; a; m
        """,
        first=True,
    )
    words = options.operands
    if options.has("version", "help"):
        return
    inner = call.shell.copy()
    inner.functions = {}
    if options.has("c"):
        if words:
            inner.positional = tuple(word.shape for word in words[2:]) if not any(word.many for word in words) else None
            call.script(words[0], inner, "a script")
        return
    if words and not options.has("s"):
        if call.walk.fetched(words[0].start, words[0].end):
            call.note("dangerous", "runs what comes from the network as a script", at=words[0])
        else:
            call.note("unknown", f"runs the script {words[0].shown}, which is not looked into", at=words[0])
        return
    _reads_script(call, inner, "a script")


def _reads_script(call: Call, inner: Shell, what: str) -> None:
    source = call.shell.input
    if source.kind == "pipe" and call.walk.fetched(source.start, source.end):
        call.note("dangerous", f"runs what comes from the network as {what}")
    elif source.kind == "text" and what == "a script":
        call.walk.script(source.text, inner, (source.start, source.end))
    elif source.kind == "inherited" and not call.arguments and what == "a script":
        call.note("unknown", "runs what is typed into it")
    else:
        call.note("unknown", f"runs what it reads as {what}")


def interpreter(call: Call) -> None:
    """``python``, ``node`` and such: a program of another language."""
    if call.arguments and call.arguments[0].text in ("--version", "-V", "--help", "-h", "-v"):
        return
    for word in call.arguments:
        if call.walk.fetched(word.start, word.end):
            call.note("dangerous", "runs what comes from the network as a program", at=word)
            return
    first = call.arguments[0].text if call.arguments else "-"
    if first == "-":
        _reads_script(call, call.shell, "a program")
    elif first in ("-c", "-e", "--eval", "-p", "-r", "-E"):
        call.note("unknown", "runs a program of another language, which is not looked into")
    else:
        call.note("unknown", f"runs the program {call.arguments[0].shown}, which is not looked into")


def sudo(call: Call) -> None:
    """``sudo``, ``doas``, ``su``, ``pkexec``: as another user."""
    call.note("dangerous", "runs as another user, whom no safeguard holds")
    options = call.options(
        """
            u= user=; g= group=; h= host=; p= prompt=; C=; r=; t=; T=; D= chdir=; R=; E preserve-env; H; n; S; k; K;
            l; i; s; b; v; A; P; c= command=
        """,
        first=True,
    )
    if call.program == "su":
        for word in call.options("c= command=; l login; s= shell=; m; p").values("c"):
            call.script(word, call.shell.copy(), "a script")
        return
    words = list(options.operands)
    while words and "=" in words[0].lead:
        words.pop(0)
    call.run(words)


_SSH_RUNS = (
    "proxycommand", "localcommand", "permitlocal", "knownhostscommand", "pkcs11provider", "securitykeyprovider",
    "xauthlocation", "include", "match",
)  # fmt: skip


def names_program(options: Options) -> bool:
    """True if these options of ``ssh``, or one that is called like it, may name a program or a library to run."""
    settings = [word.lead.strip().lower() for word in options.values("o")]
    return options.has("F", "I") or any(not one or one.startswith(_SSH_RUNS) for one in settings)


def ssh(call: Call) -> None:
    """Another machine."""
    options = call.options(
        """
            p=; i=; l=; o=; F=; J=; L=; R=; D=; W=; b=; c=; e=; E=; I=; m=; O=; Q=; S=; w=; B=; t; T; N; f; n; q; v;
            A; a; X; x; Y; C; 4; 6; g; K; k; M; V; y
        """,
        first=True,
    )
    if options.has("V", "Q"):
        return
    call.note("risky", "works on another machine, of which no checkpoint is taken")
    if names_program(options):
        call.note("unknown", "runs a program to get there")
    call.change(options.values("E"), "write", "writes")
    words = options.operands[1:]
    there = call.shell.copy()
    there.forget()
    there.functions = {}
    if words:
        texts = [word.text for word in words]
        if any(text is None for text in texts):
            call.note("unknown", "what it runs there is put together only then")
        else:
            call.walk.script(" ".join(text or "" for text in texts), there, (words[0].start, words[-1].end))
    elif there.input.kind != "inherited":
        _reads_script(call, there, "a script")


def watch(call: Call) -> None:
    """Runs a command again and again, by a shell."""
    options = call.options("n= interval=; d; t; b; e; g; c; x exec; p; q=; C; w", first=True)
    if options.has("x"):
        call.run(options.operands)
    else:
        _shell_words(call, options.operands)


def _shell_words(call: Call, words: tuple[Word, ...]) -> None:
    if any(word.text is None for word in words):
        call.note("unknown", "what it runs is put together only then")
    elif words:
        text = " ".join(word.text or "" for word in words)
        call.walk.script(text, call.shell.copy(), (words[0].start, words[-1].end))


def script(call: Call) -> None:
    """``script``: a shell, with a record of it in a file."""
    options = call.options("c= command=; q; a; e; f; O= log-out=; I= log-in=; B= log-io=; T= log-timing=; t")
    for word in options.values("c"):
        call.script(word, call.shell.copy(), "a script")
    if not options.has("c"):
        call.note("unknown", "runs what is typed into it")
    for name in ("O", "I", "B", "T"):
        call.change(options.values(name), "write", "writes")
    call.change(options.operands or (Word("typescript", *call.span),), "write", "writes")


def flock(call: Call) -> None:
    """Runs a command while it holds a lock."""
    options = call.options("c= command=; s; x; n; w= timeout=; E=; F; o; u; v", first=True)
    words = options.operands
    if words and words[0].text is not None and not words[0].text.isdigit():
        call.change(words[:1], "write", "makes or locks")
    rest = words[1:]
    if rest and rest[0].text == "-c":
        call.script(rest[1], call.shell.copy(), "a script") if len(rest) > 1 else None
    else:
        call.run(rest)


def apart(call: Call) -> None:
    """``chroot``, ``unshare``, ``parallel`` and the like: where a command runs, or on what, cannot be told."""
    call.note("unknown", "where the command runs, or on what, cannot be told")


_FD = """
        x= exec= X= exec-batch=; t= type=; e= extension=; d= max-depth=; E= exclude=; S= size=; c= color=; j= threads=;
        o= owner=; H; I; u; s; i; g; F; a; l; L; p; 0; 1; q
    """


def fd(call: Call) -> None:
    """Looks for files, as `find` does; may run a command for each."""
    texts = [word.text for word in call.arguments]
    for at, text in enumerate(texts):
        if text in ("-x", "--exec", "-X", "--exec-batch"):
            found = [Word(f"./{STAR}", *call.span, many=True)]
            _for_each(call, [*call.arguments[at + 1 :], Word("{}", *call.span)], found)
            return
    if call.options(_FD).has("x"):
        call.note("unknown", "runs a command for each that it finds")


def traced(call: Call) -> None:
    """``strace``: runs a command, or looks at one that runs, and may write what it sees to a file."""
    options = call.options(
        """
            o= output=; e= trace=; p= attach=; s=; P=; E=; u=; a=; b=; I=; O=; S=; X=; U=; f; ff; c; C; t; T; r; v; x;
            y; Y; k; q; z; Z; D; d; i; w; n; A; l=
        """,
        first=True,
    )
    for word in options.values("o"):
        if word.lead.startswith(("|", "!")):
            call.note("unknown", "gives what it sees to a program", at=word)
        else:
            call.change((word,), "write", "writes")
    call.run(options.operands)


def coproc(call: Call) -> None:
    """A command in the background; the parser knows no such word, and takes its braces for arguments."""
    words = [word for word in call.arguments if word.text not in ("{", "(")]
    call.run(words, call.shell.copy())


def mount(call: Call) -> None:
    """Lists what is mounted, or changes it."""
    if call.program != "mount" or any(not word.lead.startswith("-") for word in call.arguments):
        call.note("dangerous", "changes how the machine works")
