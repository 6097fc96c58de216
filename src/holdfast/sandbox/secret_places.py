"""Places where programs keep credentials, and where those that supply them listen: a box hides them by default."""

from __future__ import annotations

import glob
import os
import sys
from typing import TYPE_CHECKING, Final

from holdfast.sandbox.bubblewrap import is_beneath
from holdfast.sandbox.namespace import needed_places

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

OF_A_USER: Final = (
    ".ssh", ".gnupg", ".pki", ".password-store", ".local/share/keyrings", ".config/age", ".config/sops", ".config/op",
    ".1password", ".netrc", ".git-credentials", ".config/git/credentials", ".config/gh", ".config/hub",
    ".config/glab-cli", ".npmrc", ".yarnrc.yml", ".pypirc", ".cargo/credentials", ".cargo/credentials.toml",
    ".gem/credentials", ".m2/settings.xml", ".m2/settings-security.xml", ".gradle/gradle.properties",
    ".gradle/init.gradle", ".gradle/init.gradle.kts", ".gradle/init.d", ".composer/auth.json",
    ".config/composer/auth.json", ".aws", ".azure", ".config/gcloud", ".config/doctl", ".config/hcloud", ".oci",
    ".boto", ".s3cfg", ".config/rclone", ".terraform.d/credentials.tfrc.json", ".terraformrc", ".vault-token",
    ".databrickscfg", ".databricks", ".fly", ".kube", ".docker", ".config/containers/auth.json",
    ".config/helm/registry", ".colima", ".lima", ".rd", ".orbstack", ".pgpass", ".my.cnf", ".mylogin.cnf",
    ".config/filezilla", ".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium",
    ".config/BraveSoftware", ".config/microsoft-edge", ".bash_history", ".zsh_history", ".sh_history", ".history",
    ".local/share/fish/fish_history", ".python_history", ".ipython/profile_default/history.sqlite",
    ".node_repl_history", ".irb_history", ".pry_history", ".Rhistory", ".php_history", ".psql_history",
    ".mysql_history", ".mariadb_history", ".sqlite_history", ".rediscli_history", ".mongosh", ".lesshst", ".viminfo",
)  # fmt: skip
"""Below the home directory of a user."""

OF_AGENTS: Final = (
    ".claude", ".claude.json", ".codex", ".gemini", ".qwen", ".cursor", ".copilot", ".config/github-copilot",
    ".config/goose", ".config/opencode", ".local/share/opencode", ".config/amp", ".local/share/amp", ".continue",
    ".aider.conf.yml",
)  # fmt: skip
"""The same, of what agents log in with and remember: an agent itself needs it."""

OF_THE_SYSTEM: Final = (
    "/etc/shadow*", "/etc/gshadow*", "/etc/security/opasswd", "/etc/sudoers", "/etc/sudoers.d", "/etc/krb5.keytab",
    "/etc/ssh/ssh_host_*_key", "/etc/ssl/private", "/etc/pki/tls/private", "/etc/letsencrypt", "/etc/wireguard",
    "/etc/openvpn", "/etc/ipsec.secrets", "/etc/ppp/*-secrets", "/etc/NetworkManager/system-connections",
    "/etc/wpa_supplicant", "/etc/kubernetes", "/etc/rancher", "/var/lib/kubelet", "/var/lib/rancher", "/var/lib/docker",
    "/var/lib/containerd", "/var/lib/sss", "/var/lib/NetworkManager", "/var/spool/cron",
)  # fmt: skip
"""Files that only root may read, and so root in a box, too. Patterns."""

_NAMING: Final = (
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_CONFIG_DIR",
    "CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS", "DOCKER_CONFIG", "GNUPGHOME", "KUBECONFIG", "NETRC",
    "NPM_CONFIG_USERCONFIG", "PGPASSFILE", "REGISTRY_AUTH_FILE", "SSH_AUTH_SOCK", "VAULT_TOKEN_PATH", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""Variables that name such a file, directory or socket, or several, with colons between."""
_ADDRESSES: Final = ("CONTAINER_HOST", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "DOCKER_HOST")
"""Variables that hold the address of a socket: ``unix://PATH``, ``unix:path=PATH``."""


_PROGRAMS: Final = (
    "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64",
    "/usr/libexec",
)  # fmt: skip
"""The directories of programs and their libraries: without them, no program starts in a box."""


def secret_places(
    environment: Mapping[str, str], own: Collection[bytes] = (), *, agents: bool = False
) -> tuple[bytes, ...]:
    """Absolute paths, which need not exist: the user's own, those in the environment, the system's; for root, those of
    all users, whose files root can read. ``agents``: with `OF_AGENTS`, for programs that are no agents.

    A variable may name any path. A path that only a variable names is left out if a box needs it: in or above the
    directories of programs, of Python's library and of this package; or at or above ``/etc``, the interpreter or a path
    of ``own`` (the workspace, Holdfast's home).
    """
    found: dict[str, None] = {}
    for home in _homes():
        found |= dict.fromkeys(os.path.join(home, name) for name in (*OF_A_USER, *(OF_AGENTS if agents else ())))
    found |= dict.fromkeys(path for pattern in OF_THE_SYSTEM for path in glob.glob(pattern))
    # Normalizing keeps two slashes at the beginning of a path.
    named = (os.path.normpath("/" + path.lstrip("/")) for path in _named(environment) if path.startswith("/"))
    found |= dict.fromkeys(path for path in named if not _is_needed(os.fsencode(path), own))
    return tuple(os.fsencode(os.path.normpath(path)) for path in found)


def _is_needed(path: bytes, own: Collection[bytes]) -> bool:
    path = os.path.realpath(path)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    programs = [os.path.realpath(os.fsencode(each)) for each in (*_PROGRAMS, os.path.dirname(os.__file__), package)]
    executable = os.fsencode(sys.executable)
    python = (*needed_places(), os.path.realpath(executable), _with_real_parent(executable))
    kept = (*programs, *python, b"/etc", *map(os.path.realpath, own))
    return any(is_beneath(each, path) for each in kept) or any(is_beneath(path, each) for each in programs)


def _with_real_parent(path: bytes) -> bytes:
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _homes() -> Iterable[str]:
    own = os.path.expanduser("~")
    homes = [own, *(_all_homes() if os.geteuid() == 0 else ())]
    return dict.fromkeys(home for home in homes if os.path.isdir(home) and os.path.realpath(home) != "/")


def _all_homes() -> Iterator[str]:
    # Only from the file: a directory service might take long, and lists users who never used this machine.
    try:
        with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as users:
            for line in users:
                fields = line.rstrip("\n").split(":")
                if len(fields) == 7 and fields[5].startswith("/"):
                    yield fields[5]
    except OSError:
        return


def _named(environment: Mapping[str, str]) -> Iterator[str]:
    for name in _NAMING:
        yield from environment.get(name, "").split(":")
    for name in _ADDRESSES:
        for address in environment.get(name, "").split(";"):
            kind, _, rest = address.partition(":")
            if kind == "unix":
                for field in rest.split(","):
                    yield "/" + field.removeprefix("path=").lstrip("/")
