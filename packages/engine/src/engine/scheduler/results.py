"""What requests are told beside their tokens: starts, ends, and stretches of prompt logprobs."""

from __future__ import annotations

from engine.types.request import Request
from engine.types.runner_output import RowPromptLogprobs, TokenLogprobs
from engine.types.wire import SequenceFinished, SequencePromptLogprobs, SequenceStarted


class StepEvents:
    """Starts and ends since the last outputs."""

    __slots__ = ("finished", "started")

    def __init__(self) -> None:
        self.started: list[SequenceStarted] = []
        self.finished: list[SequenceFinished] = []

    @property
    def is_pending(self) -> bool:
        """True while something is to be told."""
        return bool(self.started or self.finished)

    def take(self) -> tuple[list[SequenceStarted], list[SequenceFinished]]:
        """Return (started, finished) and start anew."""
        taken = self.started, self.finished
        self.started, self.finished = [], []
        return taken


def trim_prompt_logprobs(request: Request, entry: RowPromptLogprobs) -> SequencePromptLogprobs | None:
    """Return the part of a stretch that the request was not told yet, or None.

    A request that was preempted within its prompt computes the beginning again.

    Mutates: request, counting what is returned as sent.
    """
    already = request.num_prompt_logprobs_sent + 1 - entry.start
    values = entry.logprobs
    if already >= len(values.token_ids):
        return None
    if already > 0:
        values = TokenLogprobs(values.token_ids[already:], values.logprobs[already:], values.ranks[already:])
    start = entry.start + max(already, 0)
    request.num_prompt_logprobs_sent = start + len(values.token_ids) - 1
    return SequencePromptLogprobs(request.request_id, start, values)
