"""Time the start of commands against a Typer command that does nothing.

The limit: `check-capacities` takes at most 1.5 times as long. Runs alternate, so that other load hits
all alike; the median and the fastest run are printed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 20

EMPTY = """
import typer
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
@app.command()
def nothing(name: str = "x") -> None:
    pass
app()
"""

CAPACITIES = (
    "check-capacities --gpu H100 --pool-tokens 425984 --context-length 131072 --from-args -- python -m "
    "sglang.launch_server --model-path meta-llama/Llama-3.1-8B --max-running-requests 512"
)

COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "empty Typer command": [sys.executable, "-c", EMPTY],
    "kvcanary --help": [sys.executable, "-m", "kvcanary_cli", "--help"],
    "kvcanary check-capacities": [sys.executable, "-m", "kvcanary_cli", *CAPACITIES.split()],
}


def main() -> None:
    """Print a table: median and fastest in milliseconds, and the median in multiples of the empty command."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run(command, capture_output=True, check=False)
            seconds[name].append(time.perf_counter() - started)
    base = statistics.median(seconds["empty Typer command"])
    print(f"{'':28}{'median ms':>10}{'fastest ms':>12}{'x empty':>9}")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        print(f"{name:28}{median * 1e3:10.0f}{min(taken) * 1e3:12.0f}{median / base:9.2f}")


if __name__ == "__main__":
    main()
