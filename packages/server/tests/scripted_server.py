"""A whole server process over a scripted core, to be signalled: `python scripted_server.py key=value ...`.

Prints the port on the first line of standard output. Settings of the group `server` are taken as `key=value`;
`step_s`, `start_error`, `prepare_error`, `never_starts`, `downloads_for_ever` and `dies_at_token` shape the
core.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine.entrypoints.async_llm import AsyncLLM
from engine.observability.logging import setup
from engine.types.errors import CheckpointError, EngineDeadError
from engine.types.progress import ProgressCallback
from engine.types.wire import EngineCoreOutputs
from scripted_core import ByteTokenizer, ScriptedClient, build_config
from server import cli
from server.auth import KeyRing
from server.lifecycle import Lifecycle
from server.listener import bind
from server.settings import LimitsConfig, ServerConfig
from server.state import Engine, ServerState


class DyingClient(ScriptedClient):
    """Dies once it has made so many tokens; never where that is 0."""

    def __init__(self, dies_at_token: int, step_s: float) -> None:
        super().__init__(step_s=step_s)
        self._num_left = dies_at_token or -1

    async def get_outputs(self) -> EngineCoreOutputs:
        if self._num_left == 0:
            self.die("killed by signal 9")
        outputs = await super().get_outputs()
        self._num_left = (
            max(0, self._num_left - len(outputs.token_ids)) if self._num_left > 0 else self._num_left
        )
        return outputs


def main(words: dict[str, str]) -> None:
    own = {
        name: words.pop(name, "")
        for name in (
            "step_s",
            "start_error",
            "prepare_error",
            "never_starts",
            "dies_at_token",
            "downloads_for_ever",
        )
    }
    settings = ServerConfig(**{"port": 0, **{name: float(value) for name, value in words.items()}})  # type: ignore[arg-type]
    setup("info", "server")
    listener = bind(settings.host, 0)
    print(listener.getsockname()[1], flush=True)
    state = ServerState(settings, LimitsConfig(), ["m"], KeyRing([]))

    def build_engine(on_progress: ProgressCallback) -> Engine:
        on_progress("fetch_model", 0.5)
        if own["downloads_for_ever"]:
            with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as download:
                (Path(own["downloads_for_ever"]) / "pid").write_text(str(download.pid))
                download.wait()
        if own["prepare_error"]:
            raise CheckpointError(own["prepare_error"])
        client = DyingClient(int(own["dies_at_token"] or 0), float(own["step_s"] or 0))
        if own["start_error"]:
            client.start_error = EngineDeadError(own["start_error"])
        if own["never_starts"]:
            client.may_start.clear()
        return AsyncLLM(build_config(), client=client, tokenizer=ByteTokenizer())  # type: ignore[arg-type]

    async def run() -> None:
        await Lifecycle(state, listener, build_engine).run()

    asyncio.run(run())


if __name__ == "__main__":
    arguments = dict(word.split("=", 1) for word in sys.argv[1:])

    def body(_: object) -> int:
        main(arguments)
        return cli.EXIT_OK

    sys.exit(cli.run("scripted", [], body))
