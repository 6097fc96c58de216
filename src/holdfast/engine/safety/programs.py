"""What programs do: the table of all that are known.

To add one: put its name into the line that fits, or write a rule (a function of a `Call`) and name it here. Programs
with commands of their own have a table in `tools`; what a shell does by itself is in `builtins`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.engine.safety import files, network, wrappers
from holdfast.engine.safety.builtins import BUILTINS
from holdfast.engine.safety.call import Call
from holdfast.engine.safety.files import outputs
from holdfast.engine.safety.git import git
from holdfast.engine.safety.tools import TOOLS, rule_of
from holdfast.engine.safety.wrappers import before

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.session import Level

Rule = Callable[[Call], None]

_LESS = """
    o= O= log-file= LOG-FILE=; b= buffers=; D= color=; h= max-back-scroll=; j= jump-target=;
    k= lesskey-file= lesskey-src= lesskey-content=;
    p= pattern=; P= prompt=; t= tag=; T= tag-file=; x= tabs=; y= max-forw-scroll=; z= window=; #= shift=; quotes=
"""
_MOVES = re.compile(r"\+\+?([0-9]*[gGF]?|/[^!]*)")
"""To begin at a line, at the end, or at a word."""
_DC_RUNS = re.compile(r"!(?![<>=])|\?")


def _named(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


def always(level: Level, text: str, *, reversible: bool | None = None) -> Rule:
    """The rule for a program that does the same whatever it is given."""

    def rule(call: Call) -> None:
        if not _only_asks(call):
            call.note(level, text, reversible=reversible)

    return rule


def _only_asks(call: Call) -> bool:
    return len(call.arguments) == 1 and call.arguments[0].text in ("--version", "--help")


def _reads(_call: Call) -> None:
    """Reads, whatever it is given."""


def _sets(*changing: str, text: str) -> Rule:
    """A rule for a program that reads, unless it is given one of these options or any operand (``*``)."""

    def rule(call: Call) -> None:
        given = [word.lead for word in call.arguments]
        options = {option for option in changing if option != "*"}
        bare = "*" in changing and any(not lead.startswith(("-", "+")) for lead in given)
        if bare or any(lead.split("=")[0] in options for lead in given):
            call.note("dangerous", text)

    return rule


def _edits(*options: str, runs: str = "") -> Rule:
    """A rule for a program that reads, and with one of ``options`` changes the files that it is about.

    With one of the long options ``runs`` it may run another program.
    """

    def rule(call: Call) -> None:
        if any(word.lead.split("=")[0] in options for word in call.arguments):
            call.note("changes", "changes files of the project")
        if call.named(*runs.split()):
            call.note("unknown", "runs a program that an option names")

    return rule


def _unless(spec: str, option: str, level: Level, does: str) -> Rule:
    """A rule for a program that reads, unless it is given the ``option`` of the table ``spec``."""

    def rule(call: Call) -> None:
        if call.options(spec).has(option):
            call.note(level, does)

    return rule


def _pages(call: Call) -> None:
    """``less``: may keep what it reads in a file, and begins with the commands that stand behind a plus."""
    options = call.options(_LESS)
    call.change(options.values("o"), "write", "writes")
    if options.has("k"):
        call.note("unknown", "is given keys and variables that may run any program")
    for word in call.arguments:
        if word.lead.startswith("+") and not _MOVES.fullmatch(word.text or "?"):
            call.note("unknown", "begins with commands of its own, which may run any program", at=word)


def _calculates(call: Call) -> None:
    """``dc``: a line of its language may run a command (``!``), or what it reads (``?``)."""
    options = call.options("e= expression=; f= file=; h help; V version")
    texts = [word.text for word in options.values("e")]
    if not texts and not options.operands and not options.has("f", "h", "V"):
        texts = [call.shell.input.text if call.shell.input.kind == "text" else None]
    if options.has("f") or options.operands or any(text is None or _DC_RUNS.search(text) for text in texts):
        call.note("unknown", "what it calculates may run commands")


def _links(call: Call) -> None:
    """``ldd``: lets the program that it is given load its libraries, which may run it."""
    for word in call.options("v verbose; u unused; d data-relocs; r function-relocs").operands:
        if word.text is None or posixpath.dirname(posixpath.normpath(word.text)) not in STANDARD_PLACES:
            call.note("unknown", f"may run {word.shown}", at=word)


def _formats(*checks: str) -> Rule:
    """A rule for a program that changes the files of the project, unless one of ``checks`` says to look only."""

    def rule(call: Call) -> None:
        if not _only_asks(call) and not any(word.lead.split("=")[0] in checks for word in call.arguments):
            call.note("changes", "changes files of the project")

    return rule


_READERS = """
    arch base32 base64 basename cat cksum cmp col column comm cut df diff dir dircolors dirname du egrep
    expand expr factor fgrep fmt fold free getconf getent getopt grep groups head hexdump hostid htop id
    jobs join last locale locate logname look ls lsattr lsblk lscpu lsmod lsof lspci lsusb md5sum
    nl nproc numfmt od paste pathchk pgrep pidof pinky pr printenv ps pstree readlink realpath rev
    seq sha1sum sha224sum sha256sum sha384sum sha512sum b2sum shasum md5 sleep stat sum tac tail top tput
    tr tsort tty uname unexpand uptime users vdir vmstat w wc whatis whereis which who whoami yes zcat bzcat xzcat
    zgrep zdiff eza exa tokei scc jobs cal bc nslookup dig host ping
    traceroute mtr whois netstat tldr apropos hexyl difft dust duf procs lsb_release
    sw_vers acpi shellcheck hadolint yamllint
    getfacl getfattr namei findmnt stty clear sync b3sum xxhsum
"""

PROGRAMS: Mapping[str, Rule] = {
    **_named(_READERS, _reads),
    **{name: rule_of(name) for name in TOOLS},
    **BUILTINS,
    # Readers with an option, or an operand, that names a file to write.
    "sort": outputs("o= output=; k= key=; t= field-separator=; S=; T=; compress-program=; parallel=", "o",
                    runs="compress-program"),
    "tree": outputs("o=; L=; P=; I=; H=; T=; charset=; filelimit=", "o"),
    "jq": _reads,
    "diff3": outputs("diff-program=; L= label=", runs="diff-program"),
    "dc": _calculates,
    "ldd": _links,
    **_named("nm objdump readelf size strings", outputs("plugin=", runs="plugin")),
    "delta": outputs("pager=", runs="pager"),
    "cloc": outputs("vcs=; extract-with=; config=; out= report-file=; write-lang-def=; ignored=; counted=; found=; "
                    "categorized=; sql=", "out", "write-lang-def", "ignored", "counted", "found", "categorized", "sql",
                    runs="vcs extract-with config"),
    "neofetch": outputs("config=; source=; print_config", runs="config source"),
    "mypy": outputs("config-file=; python-executable=; install-types; junit-xml=; cache-dir=; p= package=; "
                    "m= module=; c= command=; html-report= txt-report= xml-report= xslt-html-report= xslt-txt-report= "
                    "any-exprs-report= cobertura-xml-report= linecount-report= linecoverage-report= "
                    "lineprecision-report=", "junit-xml", "cache-dir", "html-report",
                    runs="config-file python-executable install-types"),
    "pyright": outputs("pythonpath=; p= project=; createstub=", runs="pythonpath"),
    "pylint": outputs("init-hook=; load-plugins=; rcfile=; output=; output-format=", "output",
                      runs="init-hook load-plugins rcfile output-format"),
    "flake8": outputs("config= append-config=; output-file=", "output-file", runs="config"),
    "markdownlint": outputs("c= config=; r= rules=; o= output=; f fix", "o", also="f", runs="c r"),
    "protolint": always("unknown", "runs the plugins, and makes the changes, that its options name"),
    "yq": outputs("i inplace in-place; o=; p=", also="i"),
    "rg": outputs("pre=; e= regexp=; f=; g= glob=; t= type=; T=; A=; B=; C=; m=; r= replace=; hostname-bin=",
                  runs="pre hostname-bin"),
    "fd": wrappers.fd,
    **_named("less zless more", _pages),
    "man": outputs("P= pager=; H html; C= config-file=; L= locale=; m= systems=; M= manpath=; s= S= sections=; e= "
                   "extension=; E= encoding=; p= preprocessor=; r= prompt=; T troff-device; R= recode=; k; f; l; w; a",
                   runs="P H C"),
    **_named("ag ack bat", outputs("pager=; ackrc=", runs="pager ackrc")),
    "info": outputs("o= output=; d= directory=; f= file=; n= node=; k= apropos=; restore=; dribble=", "o", "dribble",
                    runs="restore"),
    "file": _unless("C compile; m= magic-file=; f= files-from=; F= separator=; e= exclude=; P= parameter=", "C",
                    "changes", "writes what it has compiled here"),
    "fuser": _unless("k kill; N= signal; n= namespace=", "k", "risky",
                     "ends processes, which no checkpoint brings back"),
    "ss": _unless("K kill; A= query= socket=; D= diag=; F= filter=; f= family=; N= net=", "K", "risky",
                  "closes connections of others"),
    "arp": _sets("-d", "--delete", "-s", "--set", "-f", "--file", text="changes how the machine works"),
    "lastlog": _sets("-C", "--clear", "-S", "--set", text="changes what the system has noted of its users"),
    "iconv": outputs("f= from-code=; t= to-code=; o= output=; l; c; s", "o"),
    "uniq": files.second,
    "xxd": files.xxd,
    "date": _sets("-s", "--set", text="sets the clock"),
    "hostname": _sets("*", "-F", "-b", text="changes the name of the machine"),
    "sysctl": _sets("-w", "-p", "--write", "--load", "--system", text="changes settings of the kernel"),
    "dmesg": _sets("-c", "-C", "--clear", "--read-clear", text="clears the log of the kernel"),
    "journalctl": _sets("--vacuum-size", "--vacuum-time", "--vacuum-files", "--rotate",
                        text="removes logs of the system"),
    "ifconfig": always("risky", "may change the network of the machine"),
    # What changes files.
    "rm": files.rm,
    **_named("rmdir unlink trash", files.remove_each),
    **_named("mkdir mkfifo mknod", files.mkdir),
    "touch": files.touch,
    "truncate": files.truncate,
    **_named("tee sponge", files.tee),
    "cp": files.cp,
    "install": files.install,
    "mv": files.mv,
    "ln": files.ln,
    **_named("chmod chown chgrp", files.mode),
    "dd": files.dd,
    **_named("shred srm wipe", files.shred),
    **_named("gzip gunzip bzip2 bunzip2 xz unxz lzma zstd unzstd lz4 compress", files.in_place),
    **_named("dos2unix unix2dos rename", files.in_place),
    "tar": files.tar,
    "unzip": files.unzip,
    "zip": files.zip_,
    "rsync": files.rsync,
    **_named("sed gsed", files.sed),
    **_named("awk gawk mawk nawk", files.awk),
    "patch": files.patch,
    **_named("split csplit", files.split),
    "mktemp": files.mktemp,
    "setfacl": always("risky", "changes what files are allowed to whom"),
    "chattr": always("risky", "changes how files may be changed, which no checkpoint holds"),
    # What runs other programs.
    "env": wrappers.env,
    **_named("nohup setsid catchsegv winpty rlwrap unbuffer caffeinate", before("w; c; f; t=")),
    "nice": before("n= adjustment="),
    "ionice": before("c= class=; n= classdata=; p; t"),
    "chrt": before("f; r; o; b; i; p; a; m; v", 1),
    "taskset": before("c; p; a", 1),
    "timeout": before("k= kill-after=; s= signal=; foreground; preserve-status; v", 1),
    "gtimeout": before("k= kill-after=; s= signal=", 1),
    "stdbuf": before("i= input=; o= output=; e= error="),
    "strace": wrappers.traced,
    "ltrace": wrappers.traced,
    "busybox": before(""),
    "coproc": wrappers.coproc,
    "xargs": wrappers.xargs,
    "find": wrappers.find,
    "watch": wrappers.watch,
    "script": wrappers.script,
    "flock": wrappers.flock,
    **_named("""
        chroot unshare nsenter parallel bwrap firejail systemd-run screen tmux at batch entr expect runuser newgrp
        setpriv
    """, wrappers.apart),
    **_named("sh bash dash zsh ksh ash rbash fish mksh", wrappers.shell),
    **_named("""
        python python2 python3 node nodejs deno perl ruby php lua Rscript R java julia osascript tclsh ipython ts-node
        tsx groovy elixir erl ghci scala swift dotnet pypy3 irb
    """, wrappers.interpreter),
    **_named("psql mysql sqlite3 mongosh redis-cli", always("unknown", "may do anything to a database")),
    **_named("vim vi nvim emacs nano ed ex gdb", always("unknown", "does what whoever works with it wants")),
    **_named("sudo doas su pkexec", wrappers.sudo),
    **_named("ssh mosh", wrappers.ssh),
    # The network.
    "curl": network.curl,
    "wget": network.wget,
    **_named("scp rcp", network.scp),
    **_named("nc ncat netcat socat telnet", network.connects),
    **_named("ftp sftp rclone s3cmd aria2c", always("risky", "exchanges files with another machine")),
    **_named("""
        aws gcloud az heroku vercel netlify fly flyctl doctl wrangler firebase eb sam pulumi ansible ansible-playbook
    """, always("unknown", "may change anything that you may change on other machines")),
    **_named("mail sendmail mutt mailx", always("risky", "sends mail, which cannot be taken back")),
    **_named("twine flit vsce np lerna", always("dangerous", "publishes, which cannot be taken back")),
    # What a project defines itself.
    **_named("""
        make gmake ninja cmake meson just task rake gradle gradlew mvn ant bazel buck scons sbt tox nox invoke
        pre-commit npx bunx uvx hatch pdm grunt gulp vite webpack rollup next nx turbo mix lein cabal stack zig dune
        pytest py.test jest vitest mocha phpunit rspec eslint django-admin flask uvicorn gunicorn celery alembic
        playwright cypress coverage ctest autoreconf direnv asdf mise nvm pyenv rbenv
    """, always("unknown", "runs what the project defines")),
    **_named("""
        gcc g++ cc c++ clang clang++ ld as ar rustc javac tsc esbuild swiftc ghc protoc pandoc convert ffmpeg strip
    """, network.builds),
    "gofmt": _edits("-w"),
    "rustfmt": _formats("--check"),
    **_named("black isort autopep8 yapf", _formats("--check", "--diff", "--check-only", "-d", "-c")),
    "prettier": _edits("--write", "-w", runs="plugin config"),
    "clang-format": _edits("-i"),
    "shfmt": _edits("-w"),
    # What no checkpoint brings back.
    **_named("killall pkill xkill skill", always("risky", "ends processes by name, which no checkpoint brings back")),
    **_named("""
        mkfs mkfs.ext2 mkfs.ext3 mkfs.ext4 mkfs.xfs mkfs.btrfs mkfs.vfat mkfs.fat mkfs.ntfs mkfs.f2fs mkswap mke2fs
        wipefs fdisk sfdisk cfdisk gdisk sgdisk parted blkdiscard hdparm badblocks cryptsetup lvremove vgremove pvremove
        zpool mdadm diskutil resize2fs tune2fs debugfs
    """, always("dangerous", "changes a disk below its file system")),
    **_named("shutdown reboot poweroff halt init telinit kexec", always("dangerous", "stops or restarts the machine")),
    **_named("""
        useradd userdel usermod groupadd groupdel passwd chpasswd visudo adduser deluser chsh vipw
    """, always("dangerous", "changes the users of the machine")),
    **_named("""
        iptables ip6tables nft ufw firewall-cmd route insmod rmmod modprobe swapoff swapon grub-install update-grub
        efibootmgr setenforce losetup dmsetup setcap
    """, always("dangerous", "changes how the machine works")),
    **_named("mount umount fusermount fusermount3", wrappers.mount),
    **_named("""
        service launchctl loginctl timedatectl hostnamectl update-alternatives ldconfig renice xdg-open open gpg
        ssh-keygen ssh-add ssh-copy-id openssl defaults btrfs zfs snap flatpak pacman rpm port nix nix-env
        dpkg-reconfigure podman vagrant virsh lxc code
    """, always("risky", "changes what lies outside of the workspace")),
    **_named("dropdb mysqladmin pg_restore", always("dangerous", "changes or removes a database")),
    "git": git,
}  # fmt: skip

STANDARD_PLACES = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/homebrew/bin")
"""A program that is called by a path in one of these is taken for what its name says."""
