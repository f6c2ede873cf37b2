"""The sandbox that chat templates run in: what Jinja forbids, and budgets for what it allows without limit.

A template comes with a checkpoint and is not trusted. Jinja's own sandbox stops attribute walks; here
loop steps and macro calls are counted, growing operators are checked before they grow, what has no use in a
prompt but can fill the memory is taken away, and a deadline is looked at while counting. Knows nothing of
messages.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes, pass_eval_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent, do_join, do_replace
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 500_000
"""Loop steps and macro calls of one rendering; the longest real templates take some ten per message."""
MAX_TEXT_LEN = 16 * 1024 * 1024
"""Characters of the output and of any string an operator makes."""
MAX_RENDER_S = 10.0
MAX_STR_METHOD_NUMBER = 4096
"""Largest number given to a string method or filter (widths, counts)."""

_FORBIDDEN_FILTERS = (
    "batch",
    "center",
    "filesizeformat",
    "format",
    "pprint",
    "random",
    "slice",
    "urlize",
    "wordwrap",
)
_FORBIDDEN_GLOBALS = ("lipsum",)
_FORMAT_WIDTH = re.compile(r"[0-9]{4}|\*")
_MAX_STRFTIME_LEN = 128
_COUNT_STEP = "count_step"
_JOIN = "join_text"


class RenderBudget:
    """What one rendering may still use."""

    __slots__ = ("deadline_s", "num_steps")

    def __init__(self) -> None:
        self.num_steps = 0
        self.deadline_s = time.monotonic() + MAX_RENDER_S

    def count_step(self) -> bool:
        """Count one step; always True, so that it can stand before a condition.

        Raises:
            SecurityError: the budget is spent.
        """
        self.num_steps += 1
        if self.num_steps > MAX_STEPS:
            raise SecurityError(f"the template takes more than {MAX_STEPS} steps")
        if self.num_steps % 256 == 0 and time.monotonic() > self.deadline_s:
            raise SecurityError(f"the template takes longer than {MAX_RENDER_S:g} s")
        return True


_budget: ContextVar[RenderBudget] = ContextVar("budget")


class TemplateRefusal(TemplateError):
    """The template itself refuses the messages, by `raise_exception`."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, with budgets."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            finalize=_check_tree,
        )
        for name in _FORBIDDEN_FILTERS:
            del self.filters[name]
        for name in _FORBIDDEN_GLOBALS:
            del self.globals[name]
        self.filters |= {"tojson": _dump_json, "string": _to_string}
        self.filters |= {"indent": _indent, "join": _join, "replace": _replace}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def render_within_budget(self, template: Template, variables: dict[str, Any]) -> str:  # any JSON
        """Return the rendered text.

        Raises:
            TemplateError: the template fails, refuses, or spends its budget.
        """
        token = _budget.set(RenderBudget())
        try:
            pieces, num_characters = [], 0
            for piece in template.generate(variables):
                num_characters += len(piece)
                if num_characters > MAX_TEXT_LEN:
                    raise SecurityError(f"the rendered prompt has more than {MAX_TEXT_LEN} characters")
                pieces.append(piece)
            return "".join(pieces)
        finally:
            _budget.reset(token)

    def count_step(self) -> bool:
        """Count a loop step or a macro call of the rendering that runs in this context."""
        return _budget.get().count_step()

    def join_text(self, *values: object) -> str:
        """The `~` operator, with a limit."""
        pieces = [str(_check_tree(value)) for value in values]
        _check_len(sum(map(len, pieces)))
        return "".join(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # any template value
        """Apply an operator that can grow its operands, after a look at the size of the result."""
        if operator == "*":
            for value, count in ((left, right), (right, left)):
                if isinstance(value, str | bytes | list | tuple) and isinstance(count, int):
                    _check_len(len(value) * max(count, 0))
            _check_int(left, right)
        elif operator == "**":
            if isinstance(right, int | float) and abs(right) > 64:
                raise SecurityError(f"exponent {right!r} is too large")
            _check_int(left)
        elif operator == "%" and isinstance(left, str):
            values = right if isinstance(right, tuple) else (right,)
            _check_format(left, "%", values)
        elif (
            operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple)
        ):
            _check_len(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # template values
        """Call something from a template: string methods take no huge numbers and give no huge text."""
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _check_str_call(owner, getattr(obj, "__name__", ""), args, kwargs)
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str):
            _check_len(len(result))
        return result

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _insert_budget(template, self)
        return template


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model wrote, for training; here it is nothing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own way to say it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body as if the tag were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _insert_budget(template: nodes.Template, environment: TemplateEnvironment) -> None:
    """Count every loop step and macro call, and send `~` through the checked join.

    An attribute of the environment cannot be shadowed by a template's own variables.
    """
    for loop in template.find_all(nodes.For):
        if loop.test is None:
            loop.body.insert(0, nodes.ExprStmt(_call(_COUNT_STEP), lineno=loop.lineno))
        else:
            loop.test = nodes.And(_call(_COUNT_STEP), loop.test, lineno=loop.lineno)
    macros: list[nodes.Macro | nodes.CallBlock] = [
        *template.find_all(nodes.Macro),
        *template.find_all(nodes.CallBlock),
    ]
    for macro in macros:
        macro.body.insert(0, nodes.ExprStmt(_call(_COUNT_STEP), lineno=macro.lineno))
    for parent in list(_walk(template)):
        for field, value in parent.iter_fields():
            if isinstance(value, nodes.Concat):
                setattr(parent, field, _call(_JOIN, value.nodes))
            elif isinstance(value, list):
                value[:] = [_call(_JOIN, v.nodes) if isinstance(v, nodes.Concat) else v for v in value]
    template.set_environment(environment)


def _walk(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _walk(child)


def _call(name: str, args: list[nodes.Expr] | None = None) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args or [], [], None, None)


def _check_len(num_characters: int) -> None:
    if num_characters > MAX_TEXT_LEN:
        raise SecurityError(f"the template makes text of more than {MAX_TEXT_LEN} characters")


def _check_tree(value: Any) -> Any:  # any template value
    """Return a value unless writing it out would never end: a list may hold the same list many times over."""
    if not isinstance(value, list | tuple | dict):
        return value
    num_items, stack = 0, [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
        num_items += 1
        if num_items + len(stack) > MAX_STEPS:
            raise SecurityError(f"the template writes out more than {MAX_STEPS} items")
    return value


def _check_format(text: str, opening: str, values: Iterable[Any]) -> None:  # template values
    """Refuse huge widths, and fields that could each stand for the longest value and come to too much."""
    if _FORMAT_WIDTH.search(text):
        raise SecurityError("format widths of that size are not allowed")
    longest = 0
    for value in values:
        for item in value.values() if isinstance(value, dict) else (value,):
            _check_tree(item)
            longest = max(longest, len(item) if isinstance(item, str) else 0)
    _check_len(len(text) + text.count(opening) * longest)


def _check_int(*values: object) -> None:
    for value in values:
        if isinstance(value, int) and value.bit_length() > 64:
            raise SecurityError("the template computes with numbers of more than 64 bits")


def _check_str_call(
    owner: str,
    method: str,
    args: tuple[Any, ...],  # template values
    kwargs: dict[str, Any],  # likewise
) -> None:
    for value in [*args, *kwargs.values()]:
        if isinstance(value, int) and abs(value) > MAX_STR_METHOD_NUMBER:
            raise SecurityError(f"{method}({value!r}) is too large")
        _check_tree(value)
    if method == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        _check_replace(owner, args[0], args[1])
    elif method == "join" and args and isinstance(args[0], list | tuple):
        _check_len(len(owner) * len(args[0]) + sum(len(v) for v in args[0] if isinstance(v, str)))
    elif method in ("format", "format_map"):
        _check_format(owner, "{", [*args, *kwargs.values()])


def _check_replace(text: str, old: str, new: str) -> None:
    _check_len(len(text) + text.count(old) * max(len(new) - len(old), 0))


def _to_string(value: object) -> str:
    return str(_check_tree(value))


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    num_characters = len(width) if isinstance(width, str) else width
    if num_characters > MAX_STR_METHOD_NUMBER:
        raise SecurityError(f"indent({num_characters}) is too large")
    _check_len(len(s) + num_characters * s.count("\n"))
    return do_indent(s, width, first, blank)


@pass_eval_context
def _join(
    eval_ctx: nodes.EvalContext, value: Any, d: str = "", attribute: str | int | None = None
) -> str:  # any iterable
    values = list(value)
    _check_tree(values)
    _check_len(len(d) * len(values) + sum(len(v) for v in values if isinstance(v, str)))
    return str(do_join(eval_ctx, values, d, attribute))


@pass_eval_context
def _replace(eval_ctx: nodes.EvalContext, s: object, old: str, new: str, count: int | None = None) -> str:
    text = _to_string(s)
    _check_replace(text, old, new)
    return do_replace(eval_ctx, text, old, new, count)


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(format: str) -> str:
    # The C library honours widths ("%999999d"), which no prompt needs.
    if len(format) > _MAX_STRFTIME_LEN or _FORMAT_WIDTH.search(format):
        raise SecurityError("strftime_now takes a short format without widths")
    return datetime.now().strftime(format)


def _dump_json(
    value: Any,  # any JSON
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter without Jinja's HTML escapes, which a model would read as text."""
    if indent is not None and (not isinstance(indent, int) or not 0 <= indent <= 16):
        raise SecurityError("tojson: indent must be between 0 and 16")
    _check_tree(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
