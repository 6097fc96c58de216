"""Rules for programs that fetch or send, and for those that write a file and nothing else."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.engine.safety.files import here
from holdfast.engine.safety.wrappers import names_program

if TYPE_CHECKING:
    from holdfast.engine.safety.call import Call
    from holdfast.engine.safety.words import Word

FETCHING = frozenset(("curl", "wget", "fetch", "http", "https", "aria2c", "lynx", "w3m"))
"""What they print comes from the network."""

_CURL = """
        o= output=; O remote-name remote-name-all; J remote-header-name; output-dir=; T= upload-file=; d= data=
        data-raw= data-binary= data-urlencode= data-ascii= json=; F= form= form-string=; X= request=; H= header=; A=
        user-agent=; e= referer=; u= user=; b= cookie=; c= cookie-jar=; D= dump-header=; K= config=; x= proxy=; w=
        write-out=; m= max-time=; connect-timeout=; retry=; cacert=; E= cert=; key=; r= range=; C= continue-at=; z=
        time-cond=; L location; s silent; S show-error; f fail; i include; I head; k insecure; v verbose; g globoff; G
        get; N no-buffer; compressed; url=; resolve=; retry-delay=; limit-rate=; trace= trace-ascii=; stderr=;
        unix-socket=; interface=; ciphers=; proto=; Q= quote=; P=; max-redirs=; fail-with-body; progress-bar; n; 0; 1;
        2; 3; 4; 6; t=; y=; Y=; etag-save= libcurl= hsts= alt-svc=; engine=;
        etag-compare=; dns-servers=; V version; h help; a; create-dirs; j; l; p;
        q; R; tlsv1.2; http1.1; http2; no-progress-meter
    """


def curl(call: Call) -> None:
    """Fetches, or sends."""
    options = call.options(_CURL)
    if options.has("K", "engine"):
        call.note("unknown", "is told by a file what to do")
    for word in options.values("w"):
        if word.lead.startswith("@") or "%output" in word.shape:
            call.note("unknown", "may write a file that its format names", at=word)
    call.change([word for word in options.values("o") if word.text != "-"], "write", "writes")
    for name in ("c", "D", "trace", "stderr", "etag-save"):
        call.change([word for word in options.values(name) if word.text != "-"], "write", "writes")
    if options.has("O"):
        directory = options.values("output-dir")
        call.change(directory, "write", "writes into") if directory else here(call, "writes what it fetches here")
    method = options.value("X")
    sends = (options.has("d") and not options.has("G")) or options.has("T", "F", "Q")
    if sends or (method is not None and (method.text or "").upper() not in ("GET", "HEAD", "OPTIONS")):
        call.note("risky", "sends something to another machine, which cannot be taken back")
    else:
        _told(call)
    if options.uncertain:
        call.note("unknown", "what it is to do cannot be told")


def _told(call: Call) -> None:
    """An address, too, can carry something away."""
    for word in call.arguments:
        if word.computed:
            call.note("risky", "sends what a command prints to another machine", at=word)


def wget(call: Call) -> None:
    """Fetches into files, or sends."""
    options = call.options(
        """
            O= output-document=; o= output-file=; a= append-output=; P= directory-prefix=; q quiet; c continue; r
            recursive; N; post-data= post-file= method= body-data= body-file=; e= execute=; i= input-file=; U=
            user-agent=; header=; T= timeout=; t= tries=; spider; S; nv; n=; x; k; p; m mirror; l=; A=; R=; D=; np;
            nc; no-check-certificate; show-progress; use-askpass=; config=; load-cookies=; save-cookies=
            hsts-file= warc-file= rejected-log=; w=; limit-rate=;
            version; help; V; h
        """
    )
    if options.has("version", "help", "V", "h"):
        return
    if options.has("e", "use-askpass", "config"):
        call.note("unknown", "is given a setting that may run a program")
    for name in ("o", "a", "save-cookies"):
        call.change(options.values(name), "write", "writes")
    if options.has("spider"):
        return
    if options.has("post-data"):
        call.note("risky", "sends something to another machine, which cannot be taken back")
    else:
        _told(call)
    target = options.value("O")
    if target is not None:
        call.change([target] if target.text != "-" else [], "write", "writes")
    elif options.has("P"):
        call.change(options.values("P"), "write", "writes into")
    else:
        here(call, "writes what it fetches here")


def scp(call: Call) -> None:
    """Copies from or to another machine."""
    options = call.options("P=; i=; o=; F=; c=; l=; S=; J=; r; p; q; v; C; B; 3; 4; 6; O; T; A; D=; X=")
    if options.has("S", "D") or names_program(options):
        call.note("unknown", "runs a program to get there")
    if not options.operands:
        return
    target = options.operands[-1]
    if ":" in target.lead.split("/")[0]:
        call.note("risky", f"writes to another machine: {target.shown}", at=target)
    else:
        call.change((target,), "write", "writes")


def connects(call: Call) -> None:
    """``nc`` and such: connect to another machine; with some options a program answers it."""
    for word in call.arguments:
        letters = word.lead.startswith("-") and not word.lead.startswith("--") and not {"e", "c"}.isdisjoint(word.lead)
        if letters or any(kind in word.shape.lower() for kind in ("exec:", "system:", "shell:")):
            call.note("unknown", "may run a program for the other side", at=word)
    if call.named("exec", "sh-exec", "lua-exec"):
        call.note("unknown", "runs a program for the other side")
    call.note("risky", "connects to another machine, or lets it in")


_BUILD_RUNS = (
    "-B", "-fplugin", "-fpass-plugin", "-wrapper", "--wrapper", "-specs", "--specs", "-fuse-ld", "--ld-path", "-load",
    "-plugin", "--plugin", "-pgm", "-processor", "--processor", "-Xplugin", "-Xclang", "linker=", "-Clinker",
    "--codegen=linker", "--config", "-iplugindir", "@",
)  # fmt: skip


def _extends(call: Call, word: Word) -> bool:
    """True if ``word`` has a compiler or converter run another program."""
    if call.program == "pandoc":
        one = call._replace(arguments=(word,))
        named = one.named("filter", "lua-filter", "pdf-engine", "defaults", "data-dir")
        return named is not None or word.lead.startswith(("-F", "-L", "-d"))
    return word.lead.startswith(_BUILD_RUNS)


def builds(call: Call) -> None:
    """Compilers and converters: write what ``-o`` names, or something here."""
    if len(call.arguments) == 1 and call.arguments[0].text in ("--version", "-v", "-V", "--help"):
        return
    for word in call.arguments:
        if _extends(call, word):
            call.note("unknown", "runs a program or a library that an option names", at=word)
    if any(word.text in ("--noEmit", "-fsyntax-only", "-E", "--list-formats") for word in call.arguments):
        return
    words = list(call.arguments)
    targets = [after for word, after in pairwise(words) if word.text == "-o"]
    targets += [word.after(2) for word in words if word.lead.startswith("-o") and word.text != "-o"]
    if targets:
        call.change(targets, "write", "writes")
    else:
        here(call, "writes what it makes here")
