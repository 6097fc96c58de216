"""Simple commands: their words, what is assigned before them, and where their input and output go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.safety.call import Call
from holdfast.engine.safety.classes import Reason
from holdfast.engine.safety.expand import Expansion
from holdfast.engine.safety.places import verdict
from holdfast.engine.safety.shell import Input
from holdfast.engine.safety.words import UNKNOWN, Word, backquoted, between_backquotes
from holdfast.engine.safety.wrappers import assign, index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tree_sitter import Node

    from holdfast.engine.safety.parse import Source
    from holdfast.engine.safety.shell import Shell
    from holdfast.engine.safety.walk import Walker

RESERVED = frozenset(
    (
        "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for", "select", "function",
        "in", "{", "}", "[[", "]]", "!",
    )
)  # fmt: skip
"""Words that are no programs where a command begins."""
_QUOTES = "'\"\\"
"""With one of these in its mark, a here-document is taken as it is."""
REDIRECTIONS = frozenset(("file_redirect", "heredoc_redirect", "herestring_redirect"))


def command(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    """Assignments, a program, arguments."""
    span = source.place(node)
    name = node.child_by_field_name("name")
    if name is not None and _is_negated(node) and source.text(name) in RESERVED:
        # After a "!" the grammar expects a simple command, and takes any other for one.
        walk.script(source.part(node.start_byte, len(source.data)), shell, span)
        return
    shell.cwd_if_well = shell.cwds
    outer, nodes = shell.input, [*walk.behind.get(span, ())]
    for child in node.children:
        if child.type in REDIRECTIONS:
            for behind in _redirect(walk, child, shell, source, nodes):
                walk.visit(behind, shell.copy(), source)
    words, assigned = _words_of(node, shell, source, lambda inner: walk.inside(inner, shell, source))
    for group in adjacent(nodes):
        words += walk.expand(group, shell, source)
    call = Call("", (), span, shell, walk)
    if words:
        # What is assigned before a command holds for that command alone.
        inner = shell.copy() if assigned else shell
        for name, shape in assigned:
            assign(call, inner, name, shape)
        walk.invoke(words, inner, span)
        if assigned:
            _take_over(shell, inner, assigned)
    else:
        for name, shape in assigned:
            assign(call, shell, name, shape)
    shell.input = outer


def _is_negated(node: Node) -> bool:
    return node.parent is not None and node.parent.type == "negated_command"


def _take_over(shell: Shell, inner: Shell, assigned: Sequence[tuple[str, str]]) -> None:
    before = dict(shell.variables)
    shadowed = shell.shadowed
    shell.become([inner])
    shell.cwd_if_well = inner.cwd_if_well
    shell.shadowed = shadowed
    for name, _ in assigned:
        if name in before:
            shell.variables[name] = before[name]
        else:
            shell.variables.pop(name, None)


def _words_of(
    node: Node, shell: Shell, source: Source, into: Callable[[Node], None]
) -> tuple[list[Word], list[tuple[str, str]]]:
    expansion = Expansion(source, shell, into)
    assigned: list[tuple[str, str]] = []
    parts: list[Node] = []
    for child in node.children:
        if child.type == "variable_assignment":
            assigned.append(_assignment(child, expansion))
        elif child.type not in REDIRECTIONS:
            parts.append(child)
    words = [word for group in adjacent(parts) for word in expansion.words(group)]
    return words, assigned


def _assignment(node: Node, expansion: Expansion) -> tuple[str, str]:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    operator = next((child.type for child in node.children if not child.is_named), "=")
    shape = expansion.value(value)
    if name is None or name.type != "variable_name":
        if name is not None:
            expansion.into(name)
        return (expansion.source.text(name).split("[")[0] if name is not None else "", UNKNOWN)
    plain = operator == "=" and (value is None or value.type != "array")
    return (expansion.source.text(name), shape if plain else UNKNOWN)


def assignments(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    """``a=b``, ``export a=b``, ``unset a``."""
    call = Call("", (), source.place(node), shell, walk)
    expansion = Expansion(source, shell, lambda inner: walk.inside(inner, shell, source))
    if node.type == "variable_assignment":
        name, shape = _assignment(node, expansion)
        assign(call, shell, name, shape)
        return
    words: list[Word] = []
    given: list[tuple[str, str]] = []
    for child in node.children:
        if child.type == "variable_assignment":
            given.append(_assignment(child, expansion))
        elif child.is_named and child.type != "variable_name":
            words += expansion.words([child])
        elif child.type == "variable_name" and node.type == "unset_command":
            words.append(Word(source.text(child), *source.place(child)))
    for name, shape in given:  # (as `export` has all of its words expanded before it assigns any)
        assign(call, shell, name, shape)
    index(call, words)
    for word in words:
        name, equals, _ = word.lead.partition("=")
        if name.isidentifier() and node.type == "unset_command" and name != "PATH":
            # Without it, programs do what is usual.
            shell.variables[name] = UNKNOWN
            if name in shell.functions:
                shell.functions[name] = shell.functions[name]._replace(certain=False)
        elif name.isidentifier():
            assign(call, shell, name, word.after(len(name) + 1).shape if equals else UNKNOWN)
        elif not name.startswith(("-", "+")):
            shell.forget()
        elif "n" in name:
            # A name for another variable: no value is certain any more.
            shell.forget()
            if source.text(node.children[0]) in ("declare", "typeset", "local"):
                call.note("unknown", "a variable may then stand for any other", at=word)


def _run(walk: Walker, nodes: Sequence[Node], shell: Shell, source: Source, span: tuple[int, int]) -> None:
    words = [word for group in adjacent(nodes) for word in walk.expand(group, shell, source)]
    if words:
        walk.invoke(words, shell, span)


def quietly(command: Node, shell: Shell, source: Source) -> list[Word]:
    """The words of a command, without looking into what runs while they are expanded."""
    return _words_of(command, shell.copy(), source, lambda _node: None)[0]


def redirected(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    """Anything with redirections behind it."""
    outer = shell.input
    rest: list[Node] = []
    extra: list[Node] = []
    for child in node.children:
        if child.type in REDIRECTIONS:
            rest += _redirect(walk, child, shell, source, extra)
    body = node.child_by_field_name("body")
    if body is not None:
        last = _last(body)
        if extra and last.type == "command":
            walk.behind[source.place(last)] = extra
        elif extra:
            walk.add(Reason("no shell syntax that is understood", "", *source.place(node), "unknown", reversible=False))
        walk.visit(body, shell, source)
        walk.behind.pop(source.place(last), None)
    elif extra:
        _run(walk, extra, shell, source, source.place(node))
    shell.input = outer
    for child in rest:
        # What stands behind the mark of a here-document, and before its text.
        inner = shell.copy()
        if child.type == "pipeline" and body is not None:
            inner.input = Input("pipe", "", source.place(body)[0], source.place(body)[1])
            if body.type == "command" and quietly(body, shell, source)[0].text == "cat":
                text = _document(node, source)
                inner.input = Input("text", text, *source.place(node)) if text is not None else inner.input
        walk.visit(child, inner, source)
        shell.become([shell.copy(), inner])


def _last(node: Node) -> Node:
    """The simple command at the end of ``node``: the grammar does not give it what stands behind a redirection."""
    while node.type in ("list", "pipeline", "negated_command", "redirected_statement"):
        parts = [child for child in node.children if child.is_named and child.type not in REDIRECTIONS]
        if not parts:
            break
        node = parts[-1]
    return node


def _document(node: Node, source: Source) -> str | None:
    """The text of the here-document of ``node``, if it is certain."""
    for child in node.children:
        if child.type == "heredoc_redirect":
            return _text_of(child, source)
    return None


def _redirect(walk: Walker, node: Node, shell: Shell, source: Source, extra: list[Node]) -> list[Node]:
    """Look at one redirection; gives the nodes behind a here-document that are commands of their own."""
    if node.type == "herestring_redirect":
        words = walk.expand([child for child in node.children if child.is_named][-1:], shell, source)
        text = words[0].text if len(words) == 1 else None
        span = source.place(node)
        shell.input = Input("pipe", "", *span) if text is None else Input("text", text, *span)
        return []
    if node.type == "heredoc_redirect":
        text = _text_of(node, source)
        shell.input = (
            Input("pipe", "", *source.place(node)) if text is None else Input("text", text, *source.place(node))
        )
        rest: list[Node] = []
        start = next((source.text(child) for child in node.children if child.type == "heredoc_start"), "")
        if "\\" in start or not start.isprintable() or not start.isascii():
            # Where it ends is found by another text than the one that is written.
            walk.add(
                Reason("where a document ends cannot be told", "", *source.place(node), "unknown", reversible=False)
            )
        for at, child in enumerate(node.children):
            if node.field_name_for_child(at) == "argument":
                extra.append(child)
            elif child.type in ("file_redirect", "herestring_redirect"):
                _redirect(walk, child, shell, source, extra)
            elif child.type == "heredoc_body":
                _body(walk, child, shell, source, raw=any(mark in start for mark in _QUOTES))
            elif child.is_named and child.type not in ("heredoc_start", "heredoc_end", "file_descriptor"):
                rest.append(child)
        return rest
    _file(walk, node, shell, source, extra)
    return []


def _body(walk: Walker, body: Node, shell: Shell, source: Source, *, raw: bool) -> None:
    """What runs while the text of a here-document is expanded."""
    walk.each(body, shell.copy(), source)
    text = source.text(body)
    if raw or "`" not in text:
        return
    # The grammar does not see backquotes in all places.
    scripts = between_backquotes(text)
    if scripts is None or "$(" in text:
        walk.add(Reason("backquotes that are not understood", "", *source.place(body), "unknown", reversible=False))
    for script in scripts or ():
        walk.script(backquoted(script), shell.copy(), source.place(body))


def _file(walk: Walker, node: Node, shell: Shell, source: Source, extra: list[Node]) -> None:
    operator = next((child.type for child in node.children if not child.is_named), "")
    goals = node.children_by_field_name("destination")
    # The tree takes all words that follow for destinations; the shell takes one.
    extra += goals[1:]
    for word in walk.expand(goals[:1], shell, source):
        text = word.text
        if operator in ("<", "<&"):
            shell.input = Input("file", "", word.start, word.end)
            if walk.fetched(word.start, word.end):
                shell.input = Input("pipe", "", word.start, word.end)
            if word.lead.startswith(("/dev/tcp", "/dev/udp")):
                walk.add(Reason(f"reads from {word.shown}", "", word.start, word.end, "risky", reversible=False))
        elif not (operator == ">&" and text is not None and text.rstrip("-").isdigit()) and text != "-":
            found = verdict(word, "write", shell)
            if found.level != "safe":
                note = f": {found.note}" if found.note else ""
                reason = Reason(f"writes {word.shown}{note}", "", word.start, word.end, found.level, found.reversible)
                walk.add(reason)


def stray(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    """A redirection of something that is looked into without regard to what it is."""
    for child in _redirect(walk, node, shell, source, []):
        walk.visit(child, shell, source)


def adjacent(nodes: Sequence[Node]) -> list[list[Node]]:
    """``nodes``, those together that have no space between them: to a shell they are one word."""
    groups: list[list[Node]] = []
    for node in nodes:
        if groups and groups[-1][-1].end_byte == node.start_byte:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _text_of(document: Node, source: Source) -> str | None:
    """What a here-document holds, if no expansion is in it."""
    body = next((child for child in document.children if child.type == "heredoc_body"), None)
    start = next((child for child in document.children if child.type == "heredoc_start"), None)
    if body is None or start is None:
        return None
    text = source.text(body)
    if any(mark in source.text(start) for mark in _QUOTES):
        return text
    expanded = any(child.type != "heredoc_content" for child in body.children)
    return None if expanded or any(mark in text for mark in "\\`$") else text
