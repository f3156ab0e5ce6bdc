"""The three implementations of the operations under common names, for `vectors.py` and the tests.

Nothing is imported before a backend is asked for: numba and triton take seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kvcanary_cli.errors import MissingError, UsageError, nearest

BACKENDS = ("reference", "numba", "triton")


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """One implementation: its four operations, its classes, and the way into and out of its memory."""

    name: str
    plan: Callable[..., None]
    verify: Callable[..., None]
    write: Callable[..., None]
    scatter: Callable[..., None]
    verify_plan: Any
    write_plan: Any
    log: Any
    device: str
    put: Callable[[np.ndarray], Any]
    get: Callable[[Any], np.ndarray]


def load_backend(name: str, device: str | None = None) -> Backend:
    """The implementation called `reference`, `numba` or `triton`; `device` matters to triton only.

    Without a device, triton runs on the CPU if it was told to interpret, else on the GPU.

    UsageError for another name, MissingError if this machine can't run it.
    """
    if name not in BACKENDS:
        close = nearest(name, BACKENDS)
        hint = f"did you mean {close}?" if close else None
        raise UsageError(f"backend {name} is not one of {', '.join(BACKENDS)}", hint=hint)
    if name == "triton":
        return _triton(device)
    return _reference() if name == "reference" else _numba()


def _reference() -> Backend:
    from kvcanary_cli.kernels.plan_ref import plan_ref
    from kvcanary_cli.kernels.scatter_ref import scatter_ref
    from kvcanary_cli.kernels.verify_ref import verify_ref
    from kvcanary_cli.kernels.write_ref import write_ref

    return _on_numpy("reference", plan_ref, verify_ref, write_ref, scatter_ref)


def _numba() -> Backend:
    try:
        from kvcanary_cli.kernels.plan_cpu import plan_cpu
        from kvcanary_cli.kernels.scatter_cpu import scatter_cpu
        from kvcanary_cli.kernels.verify_cpu import verify_cpu
        from kvcanary_cli.kernels.write_cpu import write_cpu
    except ImportError as error:
        raise MissingError(f"backend numba needs the package numba: {error}") from error
    return _on_numpy("numba", plan_cpu, verify_cpu, write_cpu, scatter_cpu)


def _on_numpy(
    name: str,
    plan: Callable[..., None],
    verify: Callable[..., None],
    write: Callable[..., None],
    scatter: Callable[..., None],
) -> Backend:
    from kvcanary_cli.kernels.log_cpu import ViolationLog
    from kvcanary_cli.kernels.plans_cpu import VerifyPlan, WritePlan

    return Backend(
        name=name,
        plan=plan,
        verify=verify,
        write=write,
        scatter=scatter,
        verify_plan=VerifyPlan,
        write_plan=WritePlan,
        log=ViolationLog,
        device="cpu",
        put=np.array,
        get=np.array,
    )


def _triton(device: str | None) -> Backend:
    try:
        import torch

        from kvcanary_cli.kernels import hashing, plan, scatter, verify, write
        from kvcanary_cli.kernels.log import ViolationLog
        from kvcanary_cli.kernels.plans import VerifyPlan, WritePlan
    except ImportError as error:
        raise MissingError(f"backend triton needs the packages torch and triton: {error}") from error
    is_interpreted = type(hashing.mix).__name__ == "InterpretedFunction"
    if device is None:
        device = "cpu" if is_interpreted else "cuda"
    if not is_interpreted and not device.startswith("cuda"):
        raise MissingError(
            f"backend triton can't run on device {device} without Triton's interpreter",
            hint="TRITON_INTERPRET=1 set before the start runs the kernels on the CPU, slowly",
        )
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise MissingError(f"backend triton was asked for device {device}, but no GPU is visible")
    launches: dict[str, Any] = {
        "plan": plan.launch_plan,
        "verify": verify.launch_verify,
        "write": write.launch_write,
        "scatter": scatter.launch_scatter,
    }
    if is_interpreted:
        # the interpreter's time goes by programs and steps, not by elements: few large blocks
        launches = {name: partial(launch, block=256) for name, launch in launches.items()}
        launches["write"] = partial(launches["write"], lane_block=128)
        launches["scatter"] = partial(launches["scatter"], block=4096)
    return Backend(
        name="triton",
        **launches,
        verify_plan=VerifyPlan,
        write_plan=WritePlan,
        log=ViolationLog,
        device=device,
        put=lambda array: torch.from_numpy(np.array(array)).to(device),
        get=lambda tensor: tensor.cpu().numpy(),
    )
