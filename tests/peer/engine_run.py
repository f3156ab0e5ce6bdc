"""A whole `sglang.Engine` on a CPU with a tiny random Llama, in a process of its own: `engine_run.py MODEL_DIR`.

SGLang loads the recorder through its entry point; nothing here knows of it. What is printed is counted apart from
it: a file a scheduler process appends one byte to for each forward of the model (`COUNT_FILE`).

`CANARY=log` turns SGLang's own canary on; `SIGNALS=N` sends the scheduler N signals; `NEW_TOKENS` is what each request
is to generate.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

# spawned processes import this module again, and need the stubs before sglang
sys.path.append(str(Path(__file__).parent.parent.parent))

from tests.peer import stubs

stubs.torchvision_operators()
stubs.vllm_operators()

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def count_forwards() -> None:
    """Count what the model computes, where it computes it."""
    from sglang.srt.models.llama import LlamaForCausalLM

    forward = LlamaForCausalLM.forward

    def counted(self, input_ids, positions, forward_batch, *args, **options):
        with open(os.environ["COUNT_FILE"], "ab") as file:
            file.write(b".")
        return forward(self, input_ids, positions, forward_batch, *args, **options)

    LlamaForCausalLM.forward = counted


if "COUNT_FILE" in os.environ and __name__ == "__mp_main__":
    count_forwards()
if "CANARY" in os.environ and __name__ == "__mp_main__":
    stubs.canary_without_gpu()


def ask_for_dumps(count: int) -> None:
    """Signal the scheduler process now and then, while the engine works."""
    import psutil

    (scheduler,) = (
        child
        for child in psutil.Process().children(recursive=True)
        if child.name().startswith("sglang::sched") or "sglang::scheduler" in " ".join(child.cmdline())
    )

    def ask() -> None:
        for _ in range(count):
            time.sleep(0.7)
            os.kill(scheduler.pid, signal.SIGUSR2)

    threading.Thread(target=ask, daemon=True).start()


def wait_for_writer(folder: Path, quiet_s: float = 1.0, most_s: float = 30.0) -> None:
    """Until the recording has stopped growing: `shutdown` kills the scheduler, and what waits for the disk with it."""
    sizes, since, end = {}, time.monotonic(), time.monotonic() + most_s
    while time.monotonic() < min(since + quiet_s, end):
        now = {path.name: path.stat().st_size for path in folder.glob("*")}
        if now != sizes:
            sizes, since = now, time.monotonic()
        time.sleep(0.05)


def main() -> None:
    import sglang

    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    engine = sglang.Engine(
        model_path=str(folder),
        load_format="dummy",
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        skip_tokenizer_init=True,
        disable_cuda_graph=True,
        max_total_tokens=512,
        max_running_requests=8,
        chunked_prefill_size=64,
        random_seed=0,
        kv_canary=os.environ.get("CANARY", "none"),
        log_level="info" if "CANARY" in os.environ else "error",
    )
    if "SIGNALS" in os.environ:
        ask_for_dumps(int(os.environ["SIGNALS"]))
    draw = random.Random(0)
    shared = [draw.randrange(512) for _ in range(40)]
    prompts = [
        shared[: draw.choice([0, 20, 40])] + [draw.randrange(512) for _ in range(draw.randrange(8, 60))]
        for _ in range(36)
    ]
    params = {"max_new_tokens": int(os.environ.get("NEW_TOKENS", "12")), "temperature": 0, "ignore_eos": True}
    answers = []
    for first in range(0, len(prompts), 12):
        answers += engine.generate(input_ids=prompts[first : first + 12], sampling_params=params)
    print("ANSWERS", len(answers), sum(len(answer["output_ids"]) for answer in answers))
    if "KVCANARY_RECORD" in os.environ:
        wait_for_writer(Path(os.environ["KVCANARY_RECORD"]))
    engine.shutdown()


if __name__ == "__main__":
    main()
