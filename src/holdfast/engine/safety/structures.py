"""What puts commands together: lists, pipelines, branches, loops, functions."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from holdfast.engine.safety.call import Call
from holdfast.engine.safety.commands import adjacent, assignments, command, quietly, redirected, stray
from holdfast.engine.safety.shell import Function, Input
from holdfast.engine.safety.words import UNKNOWN, backquoted
from holdfast.engine.safety.wrappers import assign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tree_sitter import Node

    from holdfast.engine.safety.parse import Source
    from holdfast.engine.safety.shell import Shell
    from holdfast.engine.safety.walk import Walker

MAX_VALUES = 16
"""Values of a loop that are gone through one by one."""

_RAW = ("$(", "`")
_ESCAPED = ("\\$(", "\\`")


def _and_or(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    """``a && b``, ``a || b``."""
    children = [child for child in node.children if child.is_named]
    kind = next((child.type for child in node.children if child.type in ("&&", "||")), "")
    if len(children) != 2 or not kind:
        walk.each(node, shell, source)
        return
    walk.visit(children[0], shell, source)
    well, otherwise = shell.copy(), shell.copy()
    well.cwds = shell.cwd_if_well
    way = well if kind == "&&" else otherwise
    walk.visit(children[1], way, source)
    leaves = kind == "||" and _leaves(children[1], source)
    shell.become([well] if leaves else [well, otherwise])
    if kind == "&&":
        shell.cwd_if_well = way.cwd_if_well


def _pipeline(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    """``a | b``: each stage in a shell of its own."""
    stages = [child for child in node.children if child.is_named]
    for at, stage in enumerate(stages):
        inner = shell.copy()
        inner.apart += len(stages) > 1
        if at:
            inner.input = _piped(stages[at - 1], stages[0], shell, source)
        walk.visit(stage, inner, source)


def _piped(last: Node, first: Node, shell: Shell, source: Source) -> Input:
    span = (source.place(first)[0], source.place(last)[1])
    if last.type == "command" and last is first:
        words = quietly(last, shell, source)
        texts = [word.text for word in words]
        # What an echo prints is as good as written here.
        if texts[:1] == ["echo"] and None not in texts and not any((text or "").startswith("-") for text in texts):
            return Input("text", " ".join(text or "" for text in texts[1:]), *span)
    return Input("pipe", "", *span)


def _apart(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    """A subshell, or a substitution."""
    inner = shell.copy()
    text = source.text(node)
    if node.type == "command_substitution" and text.lstrip().startswith("`") and "\\" in text:
        # What is in backquotes has backslashes of its own, which the tree still has.
        walk.script(backquoted(text.strip()[1:-1]), inner, source.place(node))
    else:
        walk.each(node, inner, source)


def _branches(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    """``if`` and ``case``: any of the branches, or none."""
    ways: list[Shell] = []
    then: Shell | None = None
    for child, beside in parts(node):
        if child.type == "then":
            then = shell.copy()
            then.cwds = shell.cwd_if_well
            ways.append(then)
        elif child.type in ("elif_clause", "else_clause", "case_item"):
            once = shell.copy()
            _clause(walk, child, once, source)
            ways.append(once)
            shell.become([shell.copy(), once])
        elif then is None:
            walk.statement(child, shell, source, beside=beside)
        else:
            walk.statement(child, then, source, beside=beside)
    shell.become([shell.copy(), *ways])


def _clause(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    for child, beside in parts(node):
        if child.type == "then":
            shell.cwds = shell.cwd_if_well
        walk.statement(child, shell, source, beside=beside)


def _loop(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    """``while``, ``until`` and ``for ((…))``: any number of times, so what one changes the next may find."""
    once = shell.copy()
    walk.each(node, once, source)
    shell.become([shell, once])
    again = shell.copy()
    walk.each(node, again, source)
    shell.become([shell, again])


def _for(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    variable = node.child_by_field_name("variable")
    name = source.text(variable) if variable is not None else "_"
    nodes = node.children_by_field_name("value")
    values = [word for group in adjacent(nodes) for word in walk.expand(group, shell, source)]
    body = node.child_by_field_name("body")
    call = Call("", (), source.place(node), shell, walk)
    shapes = [word.shape for word in values]
    if len(set(shapes)) > MAX_VALUES or any(word.many for word in values) or not values:
        shapes = [UNKNOWN, UNKNOWN]
    elif any(mark in shape for shape in shapes for mark in "\1\2\3"):
        shapes += shapes
    if body is None:
        return
    for shape in shapes:
        once = shell.copy()
        assign(call, once, name, shape)
        walk.visit(body, once, source)
        shell.become([shell.copy(), once])


def _definition(_walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        shell.functions[source.text(name)] = Function(((node, source),), certain=True)


def _expanded(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    walk.expand([node], shell, source)


def _tested(walk: Walker, node: Node, shell: Shell, source: Source) -> None:
    """``[ … ]``, ``[[ … ]]``: an index that stands in quotes is evaluated too."""
    todo = [node]
    while todo:
        one = todo.pop()
        todo += one.children
        text = source.text(one) if one.type in ("raw_string", "string", "word") else ""
        if "[" in text and any(sign in text for sign in (_RAW if one.type == "raw_string" else _ESCAPED)):
            Call("", (), source.place(one), shell, walk).note("unknown", "what is in an index may be run")
    walk.each(node, shell, source)


def parts(node: Node) -> Iterator[tuple[Node, bool]]:
    """What ``node`` consists of, each with whether it runs beside what follows."""
    # To ask a node for the next one takes as long as it has siblings.
    children = node.children
    for child, after in zip_longest(children, children[1:]):
        yield child, after is not None and after.type == "&" and node.type != "binary_expression"


def _leaves(node: Node, source: Source) -> bool:
    """True for a command after which nothing that follows is run."""
    words = source.text(node).split()
    return node.type == "command" and words[:1] in (["exit"], ["return"])


VISITORS: Mapping[str, Callable[[Walker, Node, Shell, Source], None]] = {
    "command": command,
    "redirected_statement": redirected,
    "pipeline": _pipeline,
    "list": _and_or,
    "subshell": _apart,
    "command_substitution": _apart,
    "process_substitution": _apart,
    "if_statement": _branches,
    "case_statement": _branches,
    "while_statement": _loop,
    "c_style_for_statement": _loop,
    "for_statement": _for,
    "function_definition": _definition,
    "variable_assignment": assignments,
    "declaration_command": assignments,
    "unset_command": assignments,
    "file_redirect": stray,
    "heredoc_redirect": stray,
    "herestring_redirect": stray,
    "expansion": _expanded,
    "test_command": _tested,
}
"""By the type of a node. What is not here is what its parts are."""
