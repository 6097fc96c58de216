"""Programs with commands of their own, such as package managers: what each command does, as tables."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.engine.safety.words import Word
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.engine.safety.call import Call
    from holdfast.model.session import Level


class Does(NamedTuple):
    """What one command of a program does."""

    level: Level
    text: str
    reversible: bool = False


READS = Does("safe", "", reversible=True)
_PACKAGES = Does("risky", "installs or removes packages, and runs what they bring along")
_OWN_CODE = Does("unknown", "runs what the project defines")
_BUILDS = Does("changes", "writes what it builds, which can be built again")
_EDITS = Does("changes", "changes files of the project", reversible=True)
_PUBLISHES = Does("dangerous", "publishes, which cannot be taken back")
_SENDS = Does("risky", "changes something that others see")
_OUTSIDE = Does("risky", "changes what lies outside of the workspace")
_DESTROYS = Does("dangerous", "destroys what lies outside of the workspace, for good")
_RUNS = Does("unknown", "runs any program")
_HOME = Does("risky", "changes settings, credentials or caches outside of the workspace")


class Tool(NamedTuple):
    """A program, by its commands."""

    commands: Mapping[str, Does]
    """By name; two words for a command of a command (``image prune``)."""
    bare: Does = READS
    """What it does without a command."""
    options: str = ""
    """The options before the command that take a value, as in `options`."""


def _commands(*groups: tuple[Does, str]) -> dict[str, Does]:
    return {name.replace("+", " "): does for does, names in groups for name in names.split()}


_NODE = _commands(
    (
        READS,
        """
        ls list outdated view info why audit help search root bin fund prefix ping whoami docs explain v show licenses
    """,
    ),
    (
        _PACKAGES,
        """
        install i ci add uninstall un remove rm update up upgrade dedupe link unlink prune rebuild import audit+fix
        fetch global+add global
    """,
    ),
    (_OWN_CODE, "run run-script test t start stop restart build dev lint"),
    (_RUNS, "exec x dlx create init"),
    (_EDITS, "pkg version"),
    (_PUBLISHES, "publish unpublish deprecate"),
    (_SENDS, "owner access dist-tag team org"),
    (_HOME, "login logout adduser config set cache token store env"),
)
_PIP = Tool(
    _commands(
        (
            READS,
            "list show freeze check help search index inspect debug hash config+list config+get cache+list cache+info",
        ),
        (_PACKAGES, "install uninstall sync"),
        (Does("changes", "downloads packages", reversible=True), "download wheel compile"),
        (_HOME, "config cache"),
    )
)
_APT = Tool(
    _commands(
        (
            READS,
            """
            list show search policy depends rdepends changelog madison showpkg stats pkgnames dumpavail help info
            files
        """,
        ),
        (
            _PACKAGES,
            """
            install remove purge update upgrade full-upgrade dist-upgrade autoremove autoclean clean build-dep
            reinstall download source satisfy edit-sources erase groupinstall localinstall add del fix
        """,
        ),
    ),
    options="o=; c=; t= target-release=",
)

TOOLS: Mapping[str, Tool] = {
    **dict.fromkeys(
        ("npm", "pnpm", "bun"), Tool(_NODE, options="prefix=; C= dir=; w= workspace= filter=; cwd=; registry=")
    ),
    "yarn": Tool(_NODE, bare=_PACKAGES, options="cwd="),
    **dict.fromkeys(("pip", "pip3", "pipx"), _PIP),
    "uv": Tool(
        _commands(
            (READS, "tree version help pip+list pip+show pip+freeze pip+tree pip+check python+list tool+list"),
            (
                _PACKAGES,
                """
                add remove sync pip+install pip+uninstall pip+sync tool+install tool+uninstall python+install venv
                tool+upgrade python+uninstall
            """,
            ),
            (_RUNS, "run tool+run x"),
            (_EDITS, "lock init export pip+compile"),
            (_BUILDS, "build"),
            (_PUBLISHES, "publish"),
            (_HOME, "cache self"),
        ),
        options="directory=; project=",
    ),
    "poetry": Tool(
        _commands(
            (READS, "show check env+info env+list version list help about"),
            (_PACKAGES, "install add remove update sync self env"),
            (_RUNS, "run shell"),
            (_EDITS, "lock init new export"),
            (_BUILDS, "build"),
            (_PUBLISHES, "publish"),
            (_HOME, "config cache"),
        )
    ),
    "conda": Tool(
        _commands(
            (READS, "list info search env+list"), (_PACKAGES, "install create remove update clean env"), (_RUNS, "run")
        )
    ),
    **dict.fromkeys(("apt", "apt-get", "apt-cache", "aptitude", "dnf", "yum", "apk", "zypper"), _APT),
    "dpkg": Tool(
        _commands(
            (READS, "-l -L -s -S --list --status --listfiles --search -p"),
            (_PACKAGES, "-i -r -P --install --remove --purge"),
        )
    ),
    "brew": Tool(
        _commands(
            (READS, "list ls info search deps leaves outdated doctor config home uses desc help --prefix --version"),
            (
                _PACKAGES,
                """
                install uninstall remove rm upgrade update reinstall tap untap link unlink cleanup autoremove cask
            """,
            ),
            (_OUTSIDE, "services pin unpin"),
        )
    ),
    "gem": Tool(
        _commands(
            (READS, "list search info env environment which help"),
            (_PACKAGES, "install uninstall update cleanup"),
            (_PUBLISHES, "push yank"),
            (_BUILDS, "build"),
        )
    ),
    "bundle": Tool(
        _commands(
            (READS, "list show info check outdated"),
            (_PACKAGES, "install update add remove clean"),
            (_RUNS, "exec"),
            (_EDITS, "lock init"),
        ),
        bare=_PACKAGES,
    ),
    "composer": Tool(
        _commands(
            (READS, "show info outdated validate why licenses"),
            (_PACKAGES, "install update require remove dump-autoload create-project global"),
            (_RUNS, "exec run run-script"),
        )
    ),
    "cargo": Tool(
        _commands(
            (READS, "tree metadata search pkgid verify-project help version locate-project read-manifest"),
            (
                Does("unknown", "builds, and runs scripts of the project and of what it depends on"),
                "build b check c clippy doc d rustc rustdoc test t bench run r miri nextest fix package",
            ),
            (_PACKAGES, "install uninstall"),
            (_EDITS, "add remove rm update generate-lockfile init new fmt fetch vendor"),
            (_BUILDS, "clean"),
            (_PUBLISHES, "publish yank"),
            (_HOME, "login logout owner"),
        ),
        options="color=; config=; Z=; C=",
    ),
    "rustup": Tool(
        _commands(
            (READS, "show toolchain+list target+list which doc check component+list"),
            (_PACKAGES, "update install default toolchain target component self override"),
            (_RUNS, "run"),
        )
    ),
    "go": Tool(
        _commands(
            (READS, "version env list doc help vet mod+graph mod+why mod+verify"),
            (_BUILDS, "build"),
            (_EDITS, "fmt mod+tidy mod+init mod+edit mod+vendor mod fix work"),
            (_PACKAGES, "install get mod+download"),
            (Does("unknown", "runs the project's own code"), "test run generate tool"),
            (_HOME, "clean telemetry"),
        ),
        options="C=",
    ),
    "docker": Tool(
        _commands(
            (
                READS,
                """
                ps images logs inspect version info stats top port diff history events search image+ls image+inspect
                container+ls container+logs volume+ls volume+inspect network+ls network+inspect system+df system+info
                compose+ps compose+logs compose+config compose+images context+ls buildx+ls image+history
                container+inspect container+top compose+ls compose+version compose+top
            """,
            ),
            (
                _OUTSIDE,
                """
                build pull tag rm rmi stop start restart kill pause unpause rename create commit load import save
                export wait attach update network container image context buildx compose+build compose+pull
                compose+stop compose+start compose+restart compose+down compose+kill compose+rm plugin builder+build
                image+build image+pull image+rm container+rm container+stop container+start
            """,
            ),
            (
                Does("unknown", "runs a program in a container, which may reach files outside"),
                "run exec cp compose compose+up compose+run compose+exec container+run container+exec",
            ),
            (
                _DESTROYS,
                """
                system+prune volume+rm volume+prune image+prune container+prune network+prune builder+prune
                buildx+prune swarm
            """,
            ),
            (_PUBLISHES, "push image+push compose+push"),
            (_HOME, "login logout"),
        ),
        options="H= host=; context=; config=; l= log-level=",
    ),
    "kubectl": Tool(
        _commands(
            (
                READS,
                """
                get describe logs top explain version api-resources api-versions cluster-info diff config+view
                config+get-contexts config+current-context auth+can-i events rollout+status rollout+history
            """,
            ),
            (
                _SENDS,
                """
                apply create edit patch scale label annotate expose set rollout autoscale cordon uncordon taint run cp
            """,
            ),
            (_DESTROYS, "delete drain replace"),
            (_RUNS, "exec debug attach port-forward proxy plugin"),
            (_HOME, "config"),
        ),
        options="n= namespace=; context=; kubeconfig=; s= server=; l=; f=",
    ),
    "helm": Tool(
        _commands(
            (READS, "list ls status get history show search template lint version env"),
            (_SENDS, "install upgrade rollback"),
            (_DESTROYS, "uninstall delete"),
            (_HOME, "repo pull plugin registry"),
            (_PUBLISHES, "push"),
        ),
        options="n= namespace=",
    ),
    **dict.fromkeys(
        ("terraform", "tofu"),
        Tool(
            _commands(
                (READS, "version validate show output graph providers state+list state+show workspace+list"),
                (_EDITS, "fmt"),
                (_PACKAGES, "init get"),
                (_SENDS, "apply import refresh taint untaint state workspace"),
                (Does("risky", "asks other machines with your credentials"), "plan"),
                (_DESTROYS, "destroy"),
                (_RUNS, "console"),
            ),
            options="chdir=",
        ),
    ),
    "gh": Tool(
        _commands(
            (
                READS,
                """
                pr+list pr+view pr+diff pr+checks pr+status issue+list issue+view issue+status repo+view repo+list
                run+list run+view run+watch release+list release+view status search auth+status workflow+list
                workflow+view label+list gist+list gist+view cache+list browse
            """,
            ),
            (_SENDS, "pr issue run release workflow label gist repo secret variable cache ssh-key project"),
            (Does("risky", "changes the tree, and what is checked out"), "pr+checkout repo+clone repo+fork"),
            (_DESTROYS, "repo+delete release+delete gist+delete issue+delete secret+delete repo+archive"),
            (Does("unknown", "may do anything that you may do there"), "api extension alias codespace"),
            (_HOME, "auth config"),
        ),
        options="R= repo=",
    ),
    "systemctl": Tool(
        _commands(
            (
                READS,
                """
                status list-units is-active is-enabled is-failed cat show list-unit-files list-timers list-sockets
                help list-dependencies get-default is-system-running
            """,
            ),
            (
                _OUTSIDE,
                """
                start stop restart reload enable disable mask unmask daemon-reload kill edit reset-failed try-restart
                set-property daemon-reexec
            """,
            ),
            (_DESTROYS, "poweroff reboot halt kexec suspend hibernate isolate rescue emergency set-default"),
        ),
    ),
    "crontab": Tool(_commands((READS, "-l"), (_DESTROYS, "-r"), (_OUTSIDE, "-e -")), bare=_OUTSIDE),
    "ip": Tool(_commands((READS, "addr a address link l route r neigh n -br -4 -6 -j rule netns maddress"))),
    "holdfast": Tool(
        _commands(
            (READS, "status log show cat diff steps barriers stats doctor verify completion checkpoint save help"),
            (Does("changes", "goes to another state, which can be undone", reversible=True), "restore undo redo step"),
            (_OUTSIDE, "init fork mount unmount export import watch integrate"),
            (Does("risky", "removes what was saved"), "forget gc"),
            (_RUNS, "run"),
        ),
        options="home=; w=",
    ),
    "ruff": Tool(
        _commands((READS, "rule config linter version server analyze clean"), (READS, "check"), (_EDITS, "format"))
    ),
    "ollama": Tool(
        _commands((READS, "list ps show"), (_OUTSIDE, "pull rm create cp stop run serve"), (_PUBLISHES, "push"))
    ),
}

# Words that make of a command one that only reads, or the other way around.
_DRY = frozenset(("--dry-run", "--help", "-h", "--version"))
_FIXES: Mapping[tuple[str, str], tuple[str, ...]] = {("ruff", "check"): ("--fix", "--unsafe-fixes", "--add-noqa")}
_REVERSED: Mapping[tuple[str, str], tuple[str, ...]] = {("ruff", "format"): ("--check", "--diff")}
# What changes addresses and routes, whatever stands before it.
_IP_CHANGES = frozenset(("add", "del", "delete", "set", "flush", "change", "replace", "up", "down", "append", "exec"))


# Long options that name a program, or settings that may name one. (Go has one dash or two, and cuts nothing short.)
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "cargo": ("config",),
    "docker": ("config",),
    "gh": ("upload-pack", "config"),
    "helm": ("kubeconfig", "post-renderer"),
    "kubectl": ("kubeconfig",),
    **dict.fromkeys(
        ("npm", "pnpm", "yarn", "bun"),
        ("node-options", "script-shell", "userconfig", "viewer", "git", "editor", "browser"),
    ),
    **dict.fromkeys(("pip", "pip3", "uv"), ("python",)),
    **dict.fromkeys(("apt", "apt-get", "apt-cache", "aptitude"), ("option", "config-file")),
    **dict.fromkeys(("dnf", "yum"), ("setopt", "config")),
}
_GO = re.compile(r"--?(vettool|toolexec|exec|overlay|compiler|gccgoflags)=|--?ldflags=.*-extld", re.DOTALL)
# The same as letters.
_SHORT: Mapping[str, str] = {**dict.fromkeys(("apt", "apt-get", "apt-cache", "aptitude"), "oc"), "uv": "p", "dnf": "c"}


def _names_program(call: Call) -> Word | None:
    """The first argument that may have the program run another."""
    short = set(_SHORT.get(call.program, ""))
    for word, after in pairwise((*call.arguments, Word("", *call.span))):
        lead = word.lead
        if call.program == "go" and _GO.match(word.shape if "=" in lead else f"{word.shape}={after.shape}"):
            return word
        # Of npm; any shorter, it is the everyday `--global`.
        if lead.startswith("--globalc") or (lead.startswith("-") and not lead.startswith("--") and short & set(lead)):
            return word
    return call.named(*_SETTINGS.get(call.program, ()))


def _sets_go(call: Call, command: str) -> bool:
    """``go env -w``: keeps settings for all later calls, also such as run programs."""
    texts = {word.lead.split("=")[0].lstrip("-") for word in call.arguments if word.lead.startswith("-")}
    return command == "env" and not texts.isdisjoint(("w", "u"))


def _values_of_o(call: Call) -> list[Word]:
    """What ``-o`` names, where options have one dash or two."""
    found = [after for word, after in pairwise(call.arguments) if word.text in ("-o", "--o")]
    return found + [
        word.after(word.lead.index("=") + 1) for word in call.arguments if word.lead.startswith(("-o=", "--o="))
    ]


def rule_of(name: str) -> Callable[[Call], None]:
    """The rule for one of `TOOLS`."""
    tool = TOOLS[name]

    def rule(call: Call) -> None:
        does, command = _find(call, tool)
        option = _names_program(call)
        if option is not None:
            call.note("unknown", "runs a program, or follows settings, that an option names", at=option)
        texts = {word.text for word in call.arguments}
        if texts & _DRY and does.level != "unknown":
            return
        if not texts.isdisjoint(_FIXES.get((name, command), ())) or (
            name == "ip" and not texts.isdisjoint(_IP_CHANGES)
        ):
            does = _EDITS if name != "ip" else _OUTSIDE
        if name == "go" and _sets_go(call, command):
            does = _HOME
        if name == "go" and command == "build":
            call.change(_values_of_o(call), "write", "writes")
        if not texts.isdisjoint(_REVERSED.get((name, command), ())):
            return
        if does.level != "safe":
            inner = call._replace(program=f"{name} {command}".strip())
            inner.note(does.level, does.text, reversible=does.reversible)

    return rule


def _find(call: Call, tool: Tool) -> tuple[Does, str]:
    options = call.options(tool.options, first=True)
    words = options.operands
    known = [word.text for word in call.arguments if word.text in tool.commands and word.lead.startswith("-")]
    if known:
        return tool.commands[known[0] or ""], known[0] or ""
    if not words:
        return (tool.bare, "") if not options.uncertain else (_RUNS, "")
    first, second = words[0].text, words[1].text if len(words) > 1 else None
    if first is None:
        return Does("unknown", "which command of it that is cannot be told"), ""
    both = f"{first} {second}"
    if both in tool.commands:
        return tool.commands[both], both
    return tool.commands.get(first, Does("unknown", f"{first} is no command of it that is known here")), first
