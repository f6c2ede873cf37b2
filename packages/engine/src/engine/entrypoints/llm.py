"""`LLM`: a model for whole batches of prompts, in this process or in a core process of its own.

Composes the configuration, starts the engine, runs prompts to their end in any order the scheduler likes and
returns the outputs in the order they were asked for. Knows nothing of event loops; one caller at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from engine.config.argv import quote
from engine.config.compose import compose
from engine.config.engine_config import EngineConfig
from engine.core.client import CoreClient, build_client
from engine.entrypoints.interrupt import InterruptGuard
from engine.entrypoints.prepare import architecture_of, prepare
from engine.entrypoints.progress import GenerationProgress, StartupProgress
from engine.frontend.chat_messages import Message
from engine.frontend.chat_template import ChatTemplate, build_chat_template
from engine.frontend.input_processor import InputProcessor, ProcessedInput, Prompt
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.request_state import RequestState
from engine.frontend.sampling_defaults import build_default_fields
from engine.frontend.tokenizer import load_tokenizer
from engine.types.errors import EngineDeadError, InvalidRequestError
from engine.types.outputs import RequestOutput
from engine.types.sampling_params import RequestOutputKind, SamplingParams
from engine.types.wire import SchedulerStats

if TYPE_CHECKING:
    from engine.frontend.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

OUTPUTS_TIMEOUT_S = 0.2
"""Of one wait for a core process, so that Ctrl-C is heard while it computes."""


class LLM:
    """A running model.

    Args:
        model: name of a model option, path of a checkpoint, or hub id.
        overrides: further configuration as typed on the command line (`"cache.num_blocks=64"`).
        progress: show start-up on the terminal.

    Raises:
        ConfigError: the configuration cannot be used.
        CheckpointError: the checkpoint cannot be used.
        EngineDeadError: the engine did not start.
    """

    def __init__(self, model: str, *, overrides: Sequence[str] = (), progress: bool = True) -> None:
        composition = compose([f"+model={quote(model)}", *overrides], architecture_of=architecture_of)
        # Before the bar of start-up: a download draws its own, and two would overwrite each other.
        config = prepare(composition, entrypoint="offline")
        for warning in config.warnings:
            logger.warning("%s", warning)
        with StartupProgress(is_shown=progress) as bar:
            self._open(config, build_client(config), load_tokenizer(config), bar)

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        *,
        client: CoreClient | None = None,
        tokenizer: Tokenizer | None = None,
        progress: bool = True,
    ) -> LLM:
        """Return an `LLM` on a resolved configuration.

        Args:
            config: resolved.
            client: of a core that is not started yet; None builds the configured one.
            tokenizer: None loads the configured one.
            progress: show start-up on the terminal.
        """
        llm = cls.__new__(cls)
        with StartupProgress(is_shown=progress) as bar:
            if client is None:
                client = build_client(config)
            if tokenizer is None:
                tokenizer = load_tokenizer(config)
            llm._open(config, client, tokenizer, bar)
        return llm

    def _open(
        self, config: EngineConfig, client: CoreClient, tokenizer: Tokenizer | None, bar: StartupProgress
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.stats: SchedulerStats | None = None
        """The core's last report."""
        self._lock = threading.Lock()
        self._client: CoreClient | None = client
        self._num_requests = 0
        try:
            self.info = client.start(bar.report)
            self._chat_template = build_chat_template(config, tokenizer)
        except BaseException:
            self.close()
            raise
        self._inputs = InputProcessor(config, self.info, tokenizer)
        self._outputs = OutputProcessor(tokenizer)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        add_special_tokens: bool = True,
    ) -> list[RequestOutput]:
        """Run prompts to their end; return one output each, in order.

        Args:
            prompts: one or many; each text, token ids, `{"prompt": ...}` or `{"prompt_token_ids": ...}`.
            sampling_params: for all of them or one each; None takes the checkpoint's defaults. A `max_tokens`
                that does not fit the context is lowered to what does.
            progress: show a bar on the terminal.
            add_special_tokens: let the tokenizer add what it adds to a text.

        Returns:
            Outputs; a request that failed inside the engine has `finish_reason` "error" and others go on.

        Raises:
            InvalidRequestError: a prompt or its parameters cannot be run; nothing was.
            EngineDeadError: the engine died.
        """
        return self._run(_as_prompts(prompts), sampling_params, progress, add_special_tokens)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, by the model's chat template; one output each, in order.

        Args:
            messages: a list of messages, or a list of such lists.
            sampling_params: as for `generate`.
            progress: show a bar on the terminal.
            add_generation_prompt: open the assistant's turn.
            continue_final_message: go on with the last message instead.
            chat_template: Jinja text to use instead of the model's.
            tools: tool definitions for the template.
            chat_template_kwargs: further variables of the template.

        Raises:
            InvalidRequestError: there is no template, it refuses the messages, or as for `generate`.
        """
        template = (
            self._chat_template if chat_template is None else ChatTemplate(chat_template, self.tokenizer)
        )
        if template is None:
            raise InvalidRequestError(
                "This model has no chat template; give one as chat_template or by model.chat_template.",
                param="chat_template",
            )
        conversations = _as_conversations(messages)
        prompts = [
            template.render(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        # The template has written the special tokens already.
        return self._run(prompts, sampling_params, progress, add_special_tokens=False)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters used where none are given: the checkpoint's defaults over the API's own."""
        return SamplingParams(**build_default_fields(self.config))

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self._get_client().call("reset_prefix_cache")

    def close(self) -> None:
        """End the engine and free its memory; safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            client.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
        add_special_tokens: bool,
    ) -> list[RequestOutput]:
        client = self._get_client()
        with self._lock:
            processed = self._process_inputs(prompts, sampling_params, add_special_tokens)
            with GenerationProgress(len(processed), is_shown=progress) as bar:
                now_s = time.monotonic()
                states = [
                    self._outputs.add(_get_id(item), item, now_s, bar.finish_prompt) for item in processed
                ]
                try:
                    client.add_requests([request for item in processed for request in item.requests])
                    with InterruptGuard() as interrupt:
                        while self._outputs.has_unfinished:
                            self._step(client, bar)
                            interrupt.check()
                except BaseException:
                    # Also on Ctrl-C: the next call must find an idle engine.
                    self._abort(client, states)
                    raise
        return [state.take() for state in states]

    def _step(self, client: CoreClient, bar: GenerationProgress) -> None:
        outputs = client.get_outputs(OUTPUTS_TIMEOUT_S)
        to_abort = self._outputs.process(outputs)
        if to_abort:
            client.abort_requests(to_abort)
        if outputs.stats is not None:
            self.stats = outputs.stats
        bar.add_tokens(len(outputs.token_ids))

    def _abort(self, client: CoreClient, states: Sequence[RequestState]) -> None:
        to_abort = [sequence_id for state in states for sequence_id in self._outputs.abort(state)]
        try:
            client.abort_requests(to_abort)
        except EngineDeadError:
            logger.debug("the engine is dead: nothing to abort")

    def _process_inputs(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        add_special_tokens: bool,
    ) -> list[ProcessedInput]:
        """Check every prompt before any of them runs."""
        processed = []
        for index, (prompt, params) in enumerate(
            zip(prompts, self._get_params(sampling_params, len(prompts)), strict=True)
        ):
            self._num_requests += 1
            try:
                item = self._inputs.process(
                    prompt,
                    msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY),
                    internal_id=str(self._num_requests),
                    arrival_time_s=time.monotonic(),
                    add_special_tokens=add_special_tokens,
                    fit_max_tokens=True,
                )
            except InvalidRequestError as error:
                if len(prompts) == 1:
                    raise
                raise InvalidRequestError(
                    f"prompts[{index}]: {error}", param=error.param, code=error.code
                ) from error
            processed.append(item)
        return processed

    def _get_params(
        self, sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> Sequence[SamplingParams]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        if isinstance(sampling_params, SamplingParams):
            return [sampling_params] * num_prompts
        _check_list("sampling_params", sampling_params, "SamplingParams or a list of them")
        if len(sampling_params) != num_prompts:
            raise InvalidRequestError(
                f"sampling_params holds {len(sampling_params)} entries for {num_prompts} prompts; give one "
                "for all or one each.",
                param="sampling_params",
            )
        for params in sampling_params:
            if not isinstance(params, SamplingParams):
                raise InvalidRequestError(
                    f"sampling_params must hold SamplingParams, got {type(params).__name__}.",
                    param="sampling_params",
                )
        return sampling_params

    def _get_client(self) -> CoreClient:
        if self._client is None:
            raise EngineDeadError("this LLM is closed; make a new one.")
        return self._client


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A list of integers is one prompt; any other list holds prompts."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    _check_list("prompts", prompts, "text, token ids or a list of prompts")
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # type: ignore[list-item]  # the check above is what narrows it
    return prompts  # type: ignore[return-value]


def _as_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> Sequence[Sequence[Message]]:
    """A list of mappings is one conversation; any other list holds conversations."""
    _check_list("messages", messages, "a list of messages or a list of conversations")
    if messages and not isinstance(messages[0], Mapping):
        return messages  # type: ignore[return-value]  # the check above is what narrows it
    return [messages]  # type: ignore[list-item]  # likewise


def _check_list(name: str, value: object, wanted: str) -> None:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidRequestError(f"{name}={value!r} is a {type(value).__name__}; give {wanted}.", param=name)


def _get_id(processed: ProcessedInput) -> str:
    return processed.requests[0].request_id.partition("-")[0]
