"""Chat messages as callers write them, brought into the shape that a template reads.

Content parts become one string or stay parts, as the template wants; a tool call's arguments become objects;
an empty list of tool calls is none. Whether a template wants parts is read off its syntax tree: it loops over
the content of a message. Knows nothing of rendering.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from jinja2 import nodes

from engine.frontend.input_processor import check_text
from engine.types.errors import InvalidRequestError

Message = Mapping[str, Any]
"""One message: `role`, `content` and what else the API knows (`name`, `tool_calls`, `tool_call_id`, ...)."""

MAX_MESSAGES = 4096
MAX_PARTS = 4096
MAX_TOOL_CALLS = 128
MAX_MESSAGE_KEYS = 64
TEXT_PART_TYPES = ("text", "input_text", "output_text", "refusal", "thinking")


class ContentFormat(Enum):
    """What a template expects as the content of a message."""

    STRING = "string"
    PARTS = "parts"


def detect_content_format(template: nodes.Template) -> ContentFormat:
    """Return PARTS where the template loops over a message's content."""
    messages = _find_aliases(template, {"messages"})
    message_names = {
        name
        for loop in template.find_all(nodes.For)
        if _is_name(loop.iter, messages)
        for name in _get_target_names(loop.target)
    }
    message_names = _find_aliases(template, message_names, item_of=messages)
    content_names = {
        name
        for assign in template.find_all(nodes.Assign)
        if _is_content(assign.node, message_names, messages)
        for name in _get_target_names(assign.target)
    }
    for loop in template.find_all(nodes.For):
        if _is_content(loop.iter, message_names, messages) or _is_name(loop.iter, content_names):
            return ContentFormat.PARTS
    return ContentFormat.STRING


def normalise_messages(messages: Sequence[Message], content_format: ContentFormat) -> list[dict[str, Any]]:
    """Return the messages as the template reads them; the caller's are left as they are.

    Raises:
        InvalidRequestError: a message is malformed; the text names its index.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise InvalidRequestError(
            f"messages must be a list, got {type(messages).__name__}.", param="messages"
        )
    if not messages:
        raise InvalidRequestError("messages is empty; give at least one message.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"messages holds {len(messages)} messages; at most {MAX_MESSAGES} are allowed.", param="messages"
        )
    return [_normalise(message, index, content_format) for index, message in enumerate(messages)]


def _normalise(message: Message, index: int, content_format: ContentFormat) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise _invalid(f"{where} must be an object, got {type(message).__name__}")
    if len(message) > MAX_MESSAGE_KEYS:
        raise _invalid(f"{where} holds {len(message)} fields; at most {MAX_MESSAGE_KEYS} are allowed")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _invalid(f"{where} needs a role, got {role!r}")
    result = {key: value for key, value in message.items() if key not in ("content", "tool_calls")}
    result["content"] = _normalise_content(message.get("content"), where, content_format)
    tool_calls = message.get("tool_calls")
    if tool_calls:  # an empty list counts as absent: templates test for the key alone
        result["tool_calls"] = _normalise_tool_calls(tool_calls, where)
    return result


def _normalise_content(content: Any, where: str, content_format: ContentFormat) -> str | list[dict[str, Any]]:
    if content is None:
        texts: list[str] = []
    elif isinstance(content, str):
        check_text(content, "messages")
        texts = [content]
    elif isinstance(content, Sequence) and not isinstance(content, bytes | bytearray):
        if len(content) > MAX_PARTS:
            raise _invalid(f"{where} holds {len(content)} content parts; at most {MAX_PARTS} are allowed")
        texts = [_get_part_text(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
    else:
        raise _invalid(f"{where}.content must be text, a list of parts or null, got {type(content).__name__}")
    if content_format is ContentFormat.STRING:
        return "\n".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _get_part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        text: Any = part
    elif isinstance(part, Mapping):
        kind = part.get("type", "text")
        if kind not in TEXT_PART_TYPES:
            raise _invalid(f"{where} is of type {kind!r}; this model reads text only")
        text = part.get("text") if kind not in ("refusal", "thinking") else part.get(kind)
    else:
        raise _invalid(f"{where} must be an object, got {type(part).__name__}")
    if not isinstance(text, str):
        raise _invalid(f"{where} needs text, got {text!r}")
    check_text(text, "messages")
    return text


def _normalise_tool_calls(tool_calls: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(tool_calls, str | bytes) or not isinstance(tool_calls, Sequence):
        raise _invalid(f"{where}.tool_calls must be a list, got {type(tool_calls).__name__}")
    if len(tool_calls) > MAX_TOOL_CALLS:
        raise _invalid(f"{where} holds {len(tool_calls)} tool calls; at most {MAX_TOOL_CALLS} are allowed")
    return [_normalise_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(tool_calls)]


def _normalise_tool_call(call: Any, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise _invalid(f"{where} must be an object, got {type(call).__name__}")
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise _invalid(f"{where} needs a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # Templates print arguments with tojson, so a string would come out quoted twice.
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise _invalid(f"{where}.function.arguments is not valid JSON") from None
    elif arguments is None:
        arguments = {}
    return {**call, "function": {**function, "arguments": arguments}}


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{message}.", param="messages")


def _find_aliases(template: nodes.Template, names: set[str], item_of: set[str] | None = None) -> set[str]:
    """Names that templates bind to `names` (or to an item of `item_of`), in any order of assignment."""
    found = set(names)
    assigns = list(template.find_all(nodes.Assign))
    for _ in range(len(assigns)):
        before = len(found)
        for assign in assigns:
            is_item = item_of is not None and _is_item(assign.node, item_of)
            if is_item or _is_name(assign.node, found):
                found.update(_get_target_names(assign.target))
        if len(found) == before:
            break
    return found


def _strip(node: nodes.Node) -> nodes.Node:
    """The value beneath filters and slices: `messages[1:] | list` is still messages."""
    if isinstance(node, nodes.Filter) and node.node is not None:
        return _strip(node.node)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _strip(node.node)
    return node


def _is_name(node: nodes.Node, names: set[str]) -> bool:
    node = _strip(node)
    return isinstance(node, nodes.Name) and node.name in names


def _is_item(node: nodes.Node, names: set[str]) -> bool:
    node = _strip(node)
    return isinstance(node, nodes.Getitem) and _is_name(node.node, names)


def _is_content(node: nodes.Node, message_names: set[str], messages: set[str]) -> bool:
    node = _strip(node)
    if isinstance(node, nodes.Getattr):
        is_content = node.attr == "content"
    elif isinstance(node, nodes.Getitem):
        is_content = isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    else:
        return False
    return is_content and (_is_name(node.node, message_names) or _is_item(node.node, messages))


def _get_target_names(target: nodes.Node) -> list[str]:
    if isinstance(target, nodes.Name):
        return [target.name]
    return [name.name for name in target.find_all(nodes.Name)]
