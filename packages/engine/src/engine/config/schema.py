"""Settings as types: checks a composed mapping against a frozen dataclass, key by key, and describes it.

Knows dataclasses and msgspec's annotations; it knows no particular setting.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from engine.config.catalog import nearest
from engine.types.errors import ConfigError

Settings = TypeVar("Settings")


def build_settings(group: str, tree: Mapping[str, Any], schema: type[Settings]) -> Settings:
    """Return the dataclass that a composed group describes.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or lies outside its range.
    """
    hints = field_types(schema)
    for key in tree:
        if key not in hints:
            name = f"{group}.{key}"
            raise ConfigError(
                f"{name} is not a setting; {nearest(name, (f'{group}.{field}' for field in hints))}", key=name
            )
    return schema(**{key: _check(group, key, value, hints[key], schema) for key, value in tree.items()})


def field_types(schema: type) -> dict[str, Any]:
    """Return the annotated type of each field, in order, ranges included."""
    hints = typing.get_type_hints(schema, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}


def default_values(schema: type) -> dict[str, Any]:
    """Return the default of each field that has one."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def is_text(hint: Any) -> bool:
    """True where a setting's only non-null values are free strings."""
    if typing.get_origin(hint) is typing.Annotated:
        return is_text(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return all(is_text(part) for part in typing.get_args(hint) if part is not type(None))
    return hint is str


def describe_type(hint: Any) -> str:
    """Return a type with its range as people read it: `int >= 1 | null`, `fcfs | priority`."""
    if hint is type(None):
        return "null"
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return " ".join([describe_type(args[0]), *(_describe_range(meta) for meta in args[1:])]).strip()
    if origin in (typing.Union, types.UnionType):
        return " | ".join(describe_type(part) for part in args)
    if origin is typing.Literal:
        return " | ".join(str(part) for part in args)
    if origin is list:
        return f"list of {describe_type(args[0])}"
    if origin is dict:
        return "mapping"
    return {str: "text"}.get(hint, getattr(hint, "__name__", str(hint)))


def field_sentences(schema: type) -> dict[str, str]:
    """Return the docstring under each field; empty without source files (a zipped installation)."""
    try:
        module = ast.parse(inspect.getsource(schema))
    except (OSError, TypeError):
        return {}
    (definition,) = module.body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = inspect.cleandoc(following.value.value)
    return found


def _check(group: str, key: str, value: object, hint: Any, schema: type) -> object:
    # Beyond 64 bits nothing that takes these values (wire, tensors, seeds) can hold them.
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        name = f"{group}.{key}"
        raise ConfigError(f"{name}={value!r} does not fit into 64 bits; give a smaller number.", key=name)
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        name = f"{group}.{key}"
        sentence = field_sentences(schema).get(key, "")
        raise ConfigError(
            f"{name}={value!r} is not valid: expected {describe_type(hint)}. {sentence}".rstrip(), key=name
        ) from error


def _describe_range(meta: Any) -> str:
    bounds = (
        *((">=", meta.ge), (">", meta.gt), ("<=", meta.le), ("<", meta.lt), ("matching", meta.pattern)),
        *(("of length >=", meta.min_length), ("of length <=", meta.max_length)),
    )
    return " and ".join(f"{sign} {bound}" for sign, bound in bounds if bound is not None)
