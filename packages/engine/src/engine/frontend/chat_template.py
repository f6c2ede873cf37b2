"""Chat messages to the prompt a model was trained on, by the checkpoint's own Jinja template.

Rendering may take long on purpose-made input, so callers run it in a worker thread; the sandbox's budgets end
it. Every failure of a template is the caller's to fix and carries the template's own words. Knows nothing of
HTTP and of tokenizing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from engine.config.engine_config import EngineConfig
from engine.frontend.chat_messages import Message, detect_content_format, normalise_messages
from engine.frontend.template_sandbox import TemplateEnvironment
from engine.types.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from engine.frontend.tokenizer import Tokenizer

MAX_TEMPLATE_LEN = 1024 * 1024
MAX_TEMPLATE_KWARGS = 64
RESERVED_NAMES = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "conversation",
        "tokenize",
        "tokenizer",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "raise_exception",
        "strftime_now",
        "range",
        "dict",
        "namespace",
        "cycler",
        "joiner",
        "self",
        "loop",
        "caller",
    }
)
"""Names that a caller's own template arguments can never take."""

_FINAL_MARK = "\ue000end of final message\ue001"
"""Stands after the final message while it is rendered, so that its end is found; private-use characters keep
it apart from any text."""


class ChatTemplate:
    """One template, compiled once; `render` is safe to call from several threads.

    Args:
        source: the Jinja text.
        tokenizer: gives the special tokens that templates name; None leaves them out.

    Raises:
        InvalidRequestError: the source is no template.
    """

    def __init__(self, source: str, tokenizer: Tokenizer | None) -> None:
        if len(source) > MAX_TEMPLATE_LEN:
            raise InvalidRequestError(
                f"chat_template has {len(source)} characters; at most {MAX_TEMPLATE_LEN} are allowed.",
                param="chat_template",
            )
        self.source = source
        self._environment = TemplateEnvironment()
        try:
            self.content_format = detect_content_format(self._environment.parse(source))
            self._template = self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise InvalidRequestError(
                f"chat_template is not valid: {error.message} (line {error.lineno}).", param="chat_template"
            ) from None
        except (TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            raise InvalidRequestError(
                f"chat_template cannot be compiled ({type(error).__name__}).", param="chat_template"
            ) from None
        self._special_tokens: dict[str, str] = {}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = getattr(tokenizer, name, None)
            if isinstance(token, str):
                self._special_tokens[name] = token

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,  # JSON values for the template
    ) -> str:
        """Return the prompt text; special tokens stand in it, so it is tokenized without adding any.

        Args:
            messages: at least one.
            add_generation_prompt: end with the opening of the assistant's turn.
            continue_final_message: end inside the last message, so that the model goes on with it.
            tools: tool definitions; empty counts as none.
            documents: documents for templates that read them; empty counts as none.
            kwargs: further variables (`enable_thinking`, ...); see `check_template_kwargs`.

        Raises:
            InvalidRequestError: malformed messages, or the template refuses or fails.
        """
        if add_generation_prompt and continue_final_message:
            raise InvalidRequestError(
                "continue_final_message cannot be used together with add_generation_prompt; set one of them.",
                param="continue_final_message",
            )
        conversation = normalise_messages(messages, self.content_format)
        if continue_final_message:
            _mark_end(conversation[-1])
        variables: dict[str, Any] = {
            **self._special_tokens,
            **check_template_kwargs(kwargs),
            "messages": conversation,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._render(variables)
        if not continue_final_message:
            return text
        end = text.rfind(_FINAL_MARK)
        if end < 0:
            raise InvalidRequestError(
                "continue_final_message: the chat template leaves the final message out.",
                param="continue_final_message",
            )
        return text[:end].replace(_FINAL_MARK, "")

    def _render(self, variables: dict[str, Any]) -> str:
        try:
            return self._environment.render_within_budget(self._template, variables)
        except SecurityError as error:
            reason = (error.message or "").rstrip(".")
            raise InvalidRequestError(f"The chat template was stopped: {reason}.", param="messages") from None
        except TemplateError as error:
            raise InvalidRequestError(
                f"The chat template refuses these messages: {error.message}", param="messages"
            ) from None
        except Exception as error:
            # A template is foreign code: whatever it trips over on these messages is not our failure. The
            # text of an unknown exception may hold anything and stays here.
            raise InvalidRequestError(
                f"The chat template fails on these messages ({type(error).__name__}).", param="messages"
            ) from None


def build_chat_template(config: EngineConfig, tokenizer: Tokenizer | None) -> ChatTemplate | None:
    """Return the configured template, else the checkpoint's own, else None.

    Raises:
        ConfigError: `model.chat_template` cannot be read, or the template is not valid.
    """
    path = config.model.chat_template
    if path is not None:
        try:
            source: str | None = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"model.chat_template={path!r} cannot be read: {error}. Give the path of a Jinja file.",
                key="model.chat_template",
            ) from error
    else:
        source = tokenizer.chat_template if tokenizer is not None else None
        if source is None and config.checkpoint is not None:
            source = config.checkpoint.chat_template
    if not source:
        return None
    try:
        return ChatTemplate(source, tokenizer)
    except InvalidRequestError as error:
        raise ConfigError(
            f"{error} Give another one by model.chat_template.", key="model.chat_template"
        ) from error


def check_template_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a caller's own template arguments, checked: identifiers that mean nothing to us, JSON values.

    Raises:
        InvalidRequestError: a reserved name, a name that is no identifier, a value that is no JSON.
    """
    if not isinstance(kwargs, Mapping):
        raise _invalid_kwargs(f"must be an object, got {type(kwargs).__name__}")
    if len(kwargs) > MAX_TEMPLATE_KWARGS:
        raise _invalid_kwargs(f"holds {len(kwargs)} names; at most {MAX_TEMPLATE_KWARGS} are allowed")
    for name, value in kwargs.items():
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise _invalid_kwargs(f"holds {name!r}, which is no variable name")
        if name in RESERVED_NAMES:
            raise _invalid_kwargs(f"must not set {name!r}; use the request's own field")
        if not _is_json(value, depth=32):
            raise _invalid_kwargs(f"holds a value for {name!r} that is no JSON")
    return dict(kwargs)


def _invalid_kwargs(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"chat_template_kwargs {message}.", param="chat_template_kwargs")


def _is_json(value: Any, depth: int) -> bool:
    if value is None or isinstance(value, bool | int | float | str):
        return True
    if depth == 0:
        return False
    if isinstance(value, list | tuple):
        return all(_is_json(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item, depth - 1) for key, item in value.items())
    return False


def _mark_end(message: dict[str, Any]) -> None:
    """Put the mark at the end of the message's own text."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _FINAL_MARK
    elif content:
        content[-1] = {**content[-1], "text": content[-1]["text"] + _FINAL_MARK}
    else:
        message["content"] = [{"type": "text", "text": _FINAL_MARK}]
