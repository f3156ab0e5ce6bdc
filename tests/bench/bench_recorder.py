"""What recording costs an SGLang scheduler: `python tests/bench/bench_recorder.py [--lanes 256] [--steps 300]`.

Needs the environment of `make test-peer`. Real pools, allocator, prefix cache and batches on a CPU; the forward
itself is a stand-in that does nothing. Figures of one decode step, median and 99th percentile of the quietest run:

- hooks: time inside our hooks, less the time inside SGLang's own functions that they wrap
- step: `prepare_for_decode` and `forward` together, without recording and with it; the difference is what the
  scheduler's thread loses, the writer's thread included, which wants the interpreter as well
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from kvcanary_cli.recorders import hooks as hooks_module
from kvcanary_cli.settings import RecordSettings
from tests.peer import stubs

PROMPT = 64
BLOCK = bytes(1 << 17)


class Meter:
    """Time that a decode step spends in hooks of ours."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._inner = 0.0

    def wrap(self, hook: Any) -> Any:
        """The hook, timed without what it wraps."""

        def timed(original: Any, *args: Any, **options: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            start = time.perf_counter()

            def measured(*inner_args: Any, **inner_options: Any) -> Any:
                begun = time.perf_counter()
                try:
                    return original(*inner_args, **inner_options)
                finally:
                    self._inner += time.perf_counter() - begun

            try:
                return hook(measured, *args, **options)
            finally:
                whole = time.perf_counter() - start
                self.spent += whole - self._inner
                self._inner = outer

        return timed


def install(meter: Meter | None) -> Any:
    """The hooks, with or without a meter around each."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    if meter is not None:
        guarded = hooks_module.Hooks.guarded
        hooks_module.Hooks.guarded = lambda self, *args: meter.wrap(guarded(self, *args))
    hooks = hooks_module.install(RecordSettings(folder=""))
    hooks._is_over = True
    HookRegistry.apply_hooks()
    return hooks


def decoding_world(lanes: int, page_size: int, steps: int) -> Any:
    """A world in which `lanes` requests decode."""
    from tests.peer.world import World

    width = PROMPT + steps + 64
    world = World(
        page_size=page_size,
        radix=True,
        slots=-(-lanes * width // page_size) * page_size,
        rows=lanes,
        width=width,
        chunk=lanes * PROMPT,
    )
    for number in range(lanes):
        world.submit(f"request-{number:08x}-{number:04x}", world.tokens(PROMPT), steps + 32)
    while world.running is None or len(world.running.reqs) < lanes:
        world.step()
    return world


def time_steps(world: Any, steps: int, pause: float, meter: Meter | None) -> tuple[list[float], list[float]]:
    """Seconds of each step, and of the hooks in it."""
    import torch

    whole, ours = [], []
    world.runner._forward_raw = lambda *args: world.done
    batch = world.running
    for _ in range(steps):
        batch.input_ids = torch.ones(len(batch.reqs), dtype=torch.int64)
        if meter is not None:
            meter.spent = 0.0
        start = time.perf_counter()
        batch.prepare_for_decode()
        middle = time.perf_counter() - start
        made = world.forward_batch(batch)
        start = time.perf_counter()
        world.runner.forward(made)
        whole.append(middle + time.perf_counter() - start)
        ours.append(meter.spent if meter is not None else 0.0)
        for req in batch.reqs:
            req.output_ids.append(7)
        wait(pause)
    return whole, ours


def wait(seconds: float) -> None:
    """Keep the core busy without the interpreter, as a scheduler does that waits for its GPU."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        zlib.crc32(BLOCK)


def told(name: str, runs: list[list[float]]) -> str:
    """The quietest run: the machine does other things too."""
    ordered = [second * 1e6 for second in sorted(min(runs, key=statistics.median))]
    last = ordered[int(len(ordered) * 0.99)]
    return f"  {name:26} median {statistics.median(ordered):7.1f} us   p99 {last:7.1f} us"


def recorded_steps(
    hooks: Any, meter: Meter, world: Any, options: argparse.Namespace
) -> tuple[Any, Any, float]:
    """Step and hook times of a recorded run, and bytes a token."""
    with tempfile.TemporaryDirectory() as folder:
        hooks.settings = RecordSettings(folder=folder, tokens=options.tokens)
        hooks.recorder, hooks._is_over = None, False
        whole, ours = time_steps(world, options.steps, options.pause / 1000, meter)
        hooks.stop()
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    return whole, ours, size / (options.lanes * options.steps)


def measure(hooks: Any, meter: Meter, options: argparse.Namespace, page_size: int) -> None:
    from sglang.srt.model_executor.model_runner import ModelRunnerOutput
    from sglang.srt.runtime_context import get_context

    def world_of() -> Any:
        world = decoding_world(options.lanes, page_size, options.steps)
        world.done = ModelRunnerOutput(logits_output=None, can_run_graph=False)
        return world

    print(
        f"page size {page_size}, {options.lanes} lanes, {options.steps} steps, {options.pause} ms between steps"
    )
    server = {"attention_backend": "torch_native", "device": "cpu", "page_size": page_size}
    off, on, ours = [], [], []
    with get_context().override_server_args(**server):
        for _ in range(options.runs):
            hooks._is_over = True
            off.append(time_steps(world_of(), options.steps, options.pause / 1000, None)[0])
            whole, spent, per_token = recorded_steps(hooks, meter, world_of(), options)
            on.append(whole)
            ours.append(spent)
    print(told("hooks", ours))
    print(told("step without recording", off))
    print(told("step with recording", on))
    print(f"  {per_token:.0f} bytes a token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--pause", type=float, default=10.0, help="ms between steps, in which a GPU would compute"
    )
    parser.add_argument(
        "--runs", type=int, default=4, help="with and without recording in turn; the best counts"
    )
    parser.add_argument("--tokens", choices=("hash", "plain"), default="hash")
    options = parser.parse_args()
    stubs.torchvision_operators()
    meter = Meter()
    hooks = install(meter)
    for page_size in (1, 16):
        measure(hooks, meter, options, page_size)


if __name__ == "__main__":
    main()
