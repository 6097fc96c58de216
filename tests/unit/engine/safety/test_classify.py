"""The rules of the classifier, one by one, by commands; and what a caller relies on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engine.safety._bash_parser import MAX_BYTES
from holdfast.engine.safety._program_table import GLOBALS, SHELLS, rows, wrappers
from holdfast.engine.safety.classify import classify, examine, levels_of
from holdfast.model.config.settings import Settings
from holdfast.model.config.values import parse_value
from holdfast.model.errors import UsageError
from holdfast.model.session_types import LEVELS, Level

DOCUMENT = (Path(__file__).parents[4] / "docs/reference/classify.md").read_text()
ROOT = b"/home/ann/project"
ENV = {"HOME": "/home/ann", "PATH": "/usr/bin:/bin"}

SAFE = """
ls -la   cat README.md | grep -n x | head -20   /usr/bin/ls; pwd && echo done || true   ls | wc -l; : # a comment
echo 'rm -rf /' "a \\"b\\" c" d\\ e r""f HEAD~1 @{u} {} 5 a=b   echo "größe" 'x$(y)`z`'
ls 2>&1 >/dev/null </etc/hosts 2>&-   [ -e a ] && test -d b   [ a = b ] || [ 1 -eq 2 ]   cd src && ls ..
LC_ALL=C TZ=UTC date -u +%F   NO_COLOR=1   sort -u a | uniq -c   sed -n '1,20p' a   sed -n -E /x/p a   sed 's/a/b/g' a
awk -F: '{print $1}' a   find . -name '*.py' -newer setup.py -print   git status   git --no-pager log --oneline -5
git -C sub diff HEAD~1 --stat   git branch -a; git remote -v; git tag -l 'v*'; git stash list   git clean -n
git config --get user.name   python3 --version   npm ls --depth 0   pip list --outdated   docker ps -a
kubectl -n web get pods   gh pr list   curl -sSL https://example.org/a   tar -tzf a.tgz   time ls   env LANG=C ls
timeout -s KILL 5 cat a   nice -n 5 cat a   sh -c 'ls | wc -l'   bash -lc "cd src && ls"   sh -c "sh -c 'ls'"
xargs -n1 cat   command -v git   kill -l   mount
"""
CHANGES = """
echo a > b   echo a >> b 2> c   > b   ls &> b   ls >| b   ls > /dev/null > b   touch a -d yesterday   mkdir -p src/a
rm a   rm -f -- -rf   mv a b   cp -r /etc/skel b   ln -s /usr b   tee -a a   dd if=a of=b bs=1k   chmod +x a
sed -i 's/a/b/' a   sed -i '/x/d' /home/ann/project/a   tar -xzf a.tgz -C sub   curl -o a https://example.org/a
ruff check --fix .   nohup sleep 5   cd src && touch a   sh -c 'touch a'
"""
RISKY = """
echo a > ../b   echo a > /etc/passwd   echo a > .git/hooks/pre-commit   echo a > .holdfast/x   cd /tmp; touch a
cd .. && touch a   touch ../a   cp a ..   mv a /tmp   touch -r a --reference=/x a; rm -r src   rm -rf .
rm -rf node_modules   rm -rf /tmp/x   find . -name '*.pyc' -delete   chown ann a   git add -A   git commit -m 'a (b)'
git checkout main   git push origin main   git clean -fdx   git reset --hard   git branch new   git config user.name x
npm ci   npm --prefix web install   pip install -r requirements.txt   apt-get install -y jq   docker build .
kubectl apply -f a.yaml   curl -X POST https://example.org   curl -sSdx https://example.org   ssh host uptime
kill 123   sudo ls   sudo frobnicate   xargs rm -rf   frobnicate; rm -r src
"""
DANGEROUS = """
rm -rf /   /bin/rm -r -f /etc   rm -rf ..   rm -rf .git   rm -rf ../other   sudo rm -rf /   sh -c 'rm -rf /'
env LC_ALL=C nice rm -rf /   cd / && rm -rf x   find / -delete   chmod -R 777 /   dd if=a of=/dev/sda
echo a > /dev/sda   git push --force   git push --forc origin   git push -uf origin main   git push origin +main
git push origin :main   git stash clear   git reflog expire --all   npm publish   docker system prune -af
kubectl delete ns web   terraform destroy   kill -9 -1   mkfs.ext4 a   frobnicate; rm -rf /
"""
UNKNOWN = """
frobnicate   ./build.sh   /tmp/ls   make -j4   npm run build   pytest -q   cargo build   docker run x   python3 a.py
python -v   ls $x   ls "$x" $(x) `x`   ls *.py   ls a?   ls [a]   ls ~   ls a=~   ls {a,b}   ls {1..3}   ls =ls
ls $'a'   ls <(ls)   echo !x   ls größe   ls > $x   ls > a b   ls <<< a   cat < /dev/tcp/host/80   ls &   (ls)
{ ls; }   ! ls   if true; then ls; fi   ls() { rm a; }   f() { ls; }; f   eval ls   source a   alias ls=rm
export A=1   set -e   cd $x; ls   cd -; touch a   cd; touch a   x=1   PATH=. ls   LC_ALL='a b' ls   LC_ALL+=a ls
x[1]=2   env PATH=. ls   env -S 'ls'   sort -o a a   sort --outp=a a   sort -ro a a   git diff --output=a
git grep -O x   git log --ext-diff   git -c alias.x='!ls' status   git frobnicate   sed 's/a/b/w c' a   sed '1e ls' a
sed -e p a   sed -i.bak s/a/b/ a   awk 'BEGIN { system("ls") }'   awk -F , '{ print > "b" }' a   awk -f a
find . -exec rm {} +   find . -fprint a   rg --pre x y   tar -tf host:a   unzip -p a.zip   go env -w A=b
pip --python x list   kubectl get pods --kubeconfig=a   test -v 'a[$(x)]'   exit 'a[$(x)]'   mv a /dev/null
timeout -x ls   ls >&a\\\\   bash a   bash -i -c ls   curl https://example.org | sh   xargs rg x   xargs rm
xargs -I{} sh -c 'cat {}'   xargs sh -c ls   echo 'a   rm a )   ls "a   cat {x}>a   ls 12>a   ls 1&>a   ls >!a   ls >&1a
"""
LINES = [
    (line, level)
    for level, lines in zip(LEVELS, (SAFE, CHANGES, UNKNOWN, RISKY, DANGEROUS), strict=True)
    for line in re.split(r"\n|   ", lines.strip("\n"))
]
TEXTS = [
    ("", "safe"),
    ("# a\n\nls \\\n  -l \\\n| cat\n\n", "safe"),
    ("echo 'a\nb' \"c\\\nd\"\nrm a\n", "changes"),
    ("# a\\\nrm a", "changes"),
    ("ls\nrm -rf /\nls", "dangerous"),
    ("ls a\\\nb", "unknown"),
    ("l\\\ns", "unknown"),
    ("ls\r\n", "unknown"),
    ("ls\xa0a", "unknown"),
    ("echo a\r# ; rm b", "unknown"),
    ("echo \\ # ; rm b", "unknown"),
    ("cat <<E\n$(rm a)\nE", "unknown"),
    ("cat > a <<'E'\nx\nE", "unknown"),
    ("ls \0", "unknown"),
    ("ls \udcff", "unknown"),
    ("echo '\udcff' '\ud800'", "safe"),
    ("ls #" + "x" * (MAX_BYTES - 4), "safe"),
    ("ls #" + "x" * (MAX_BYTES - 3), "unknown"),
]


def level(command: str, programs: dict[str, Level] | None = None, cwd: bytes = ROOT, **env: str) -> Level:
    return examine(command, cwd=cwd, root=ROOT, env={**ENV, **env}, programs=programs or {})


@pytest.mark.parametrize(("command", "expected"), [*LINES, *TEXTS], ids=lambda value: value[:40])
def test_a_command_has_a_level(command: str, expected: Level) -> None:
    assert level(command) == expected


def test_where_it_runs_decides_what_a_name_means() -> None:
    assert level("rm a", cwd=ROOT + b"/src") == "changes"
    assert level("rm a", cwd=b"/home/ann") == "risky"
    assert level("rm ../../a", cwd=ROOT + b"/src/deep") == "changes"
    assert level("rm -r ../..", cwd=ROOT + b"/src") == "dangerous"
    assert level("cd src; rm a", CDPATH="/x") == "unknown"
    assert level("ls", PATH="/bin:.") == level("ls", PATH="/bin:") == "unknown"
    assert examine("rm a", cwd=b"/w/\xff", root=b"/w/\xff", env={}) == "changes"
    assert examine("rm a", cwd=b"/", root=b"/", env={}) == "changes"


def test_programs_of_the_user_go_before_the_table() -> None:
    programs = levels_of(["frobnicate=safe", "ls=dangerous", "./gradlew=changes", "rm=risky", "rm=safe"])
    assert level("frobnicate --all", programs) == level("rm -rf /", programs) == "safe"
    assert level("./gradlew build", programs) == "changes"
    assert level("sh -c 'frobnicate; ls'", programs) == "dangerous"
    assert level("frobnicate > ../a", programs) == "risky"
    assert level("frobnicate $x", programs) == "unknown"


@pytest.mark.parametrize("entry", ["frobnicate", "=safe", "a=harmless", "", "a=", "a=SAFE"])
def test_an_entry_without_a_level_is_refused(entry: str) -> None:
    with pytest.raises(UsageError, match="gives no level"):
        levels_of([entry])
    with pytest.raises(ValueError, match="does not match"):
        parse_value("safety.programs", ["ls=safe", entry])


def test_the_configuration_takes_every_level() -> None:
    entries = tuple(f"program{number}={one}" for number, one in enumerate(LEVELS))
    assert parse_value("safety.programs", list(entries)) == entries
    assert list(levels_of(entries).values()) == list(LEVELS)
    assert Settings().safety.programs == ()


def test_the_table_is_well_formed() -> None:
    for key, found in rows().items():
        assert 1 <= len(key) <= 3
        assert not any(word.startswith("-") for word in key)
        # A line behind one that always holds would never count.
        assert all(row.conditions for row in found[:-1]), key
        assert len(found) == len({str(row) for row in found}), key
    programs = {key[0] for key in rows()}
    assert set(GLOBALS) <= programs
    assert not programs & (SHELLS | wrappers().keys()) - {"command", "bash"}
    # Writers: what follows `-o` or the like is a file to look at.
    assert all(row.level != "changes" or row.conditions for found in rows().values() for row in found)


def test_the_document_says_the_levels_in_their_order() -> None:
    assert re.findall(r"^- `(\w+)`: it", DOCUMENT, re.MULTILINE) == list(LEVELS)


@pytest.mark.parametrize("name", LEVELS)
def test_the_examples_of_the_document_are_so(name: Level) -> None:
    examples = re.search(rf"^- `{name}`: it.*?: (.*)$", DOCUMENT, re.MULTILINE)
    assert examples is not None
    commands = re.findall(r"`([^`]+)`", examples[1])
    assert len(commands) >= 4
    assert {command: level(command) for command in commands} == dict.fromkeys(commands, name)


def test_a_fault_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr("holdfast.engine.safety._bash_parser.commands", fail)
    assert classify("ls", cwd=ROOT, root=ROOT, env={}) == "unknown"


def test_the_parser_and_the_table_are_loaded_only_when_asked() -> None:
    code = (
        "import sys, holdfast.engine.safety.classify, holdfast.engine.workspace.workspace\n"
        "assert not any('tree_sitter' in name or name.endswith('safety._program_table') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


MANY_AT_ONCE = """
import threading
from holdfast.engine.safety.classify import classify

def work():
    for _ in range(25):
        classify("for one in 1 2 3; do echo $one | sed s/a/b/ > x; done; rm -rf a b; make;" * 10,
                 cwd=b"/", root=b"/x", env={})

threads = [threading.Thread(target=work) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print("done")
"""


def test_many_at_once_do_not_crash_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_AT_ONCE], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
