"""One recording in a test: the settings, the world that is recorded, and what replay says of the file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcanary_cli.settings import RecordSettings
from tests.cli import spawn
from tests.peer.world import World

SETTINGS = set(RecordSettings.__dataclass_fields__)


class Recording:
    """A world whose calls are recorded into a folder until `replay` or `close`.

    Options are those of `RecordSettings` and of `World`.
    """

    def __init__(self, hooks: Any, into: Path, **options: Any) -> None:
        from sglang.srt.runtime_context import get_context

        self.hooks = hooks
        settings = RecordSettings(folder=str(into), tokens="plain")
        hooks.settings = replace(settings, **{k: v for k, v in options.items() if k in SETTINGS})
        hooks.recorder = None
        hooks._is_over = False
        server = {k.removeprefix("server_"): v for k, v in options.items() if k.startswith("server_")}
        self._context = get_context().override_server_args(
            attention_backend="torch_native",
            device="cpu",
            page_size=options.get("page_size", 1),
            chunked_prefill_size=64,
            max_prefill_tokens=64,
            **server,
        )
        self.server_args = self._context.install()
        self.world = World(
            **{k: v for k, v in options.items() if k not in SETTINGS and not k.startswith("server_")}
        )

    def close(self) -> None:
        """End the recording."""
        if self._context is not None:
            self.hooks.stop()
            self._context.restore()
            self._context = None

    @property
    def paths(self) -> list[Path]:
        return list(self.hooks.recorder.files.paths)

    def lines(self) -> list[dict[str, Any]]:
        """Every line of the recording, after its end."""
        self.close()
        return [json.loads(line) for path in self.paths for line in path.read_text().splitlines()]

    def replay(self, *options: str) -> dict[str, Any]:
        """The report of `kvcanary replay` about the finished recording."""
        self.close()
        return replayed(self.paths[0], *options)


def replayed(*arguments: Path | str) -> dict[str, Any]:
    """The JSON report of `kvcanary replay` with files and options."""
    done = spawn("replay", *map(str, arguments), "--device", "cpu", "--format", "json")
    assert done.out, done.err
    report: dict[str, Any] = json.loads(done.out)
    return report


def mixed_requests(world: World, count: int = 12) -> None:
    """Requests of which many share a prefix, some need several chunks, and more than the pool holds at once."""
    shared = world.tokens(40)
    for number in range(count):
        tokens = shared[: world.random.choice([0, 17, 40])] + world.tokens(world.random.randrange(5, 50))
        world.submit(f"r{number}", tokens, world.random.randrange(3, 40))
    world.submit("long", world.tokens(100), 4)


def rules(report: dict[str, Any]) -> set[str]:
    """Rules that were broken, over all incidents."""
    return {breach["rule"] for incident in report["incidents"] for breach in incident["breaches"]}


def kinds(report: dict[str, Any]) -> set[str]:
    """Kinds of the incidents."""
    return {incident["kind"] for incident in report["incidents"]}
