"""Memory of the kernels' plans and violation log, whatever the array library.

`plans.py` and `log.py` give these classes torch tensors, `plans_cpu.py` and `log_cpu.py` NumPy arrays. Fields
carry the names of the contract's vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from kvcanary_cli.kernels import messages
from kvcanary_cli.kernels.consts import RING_WORDS


class Zeros(Protocol):
    """Makes an array of zeros of one library."""

    def __call__(self, shape: tuple[int, ...], dtype: str, device: Any) -> Any: ...


def no_zeros(shape: tuple[int, ...], dtype: str, device: Any) -> Any:
    """Stands in the base classes, which belong to no array library."""
    raise TypeError("allocate is called on the classes of plans, log, plans_cpu or log_cpu")


@dataclass(frozen=True, kw_only=True)
class VerifyPlanBase:
    """Slots to check in one launch, and what their stamps should say.

    Attributes:
        verify_slot_indices: [verify_capacity] int64. Slot of each entry; 0 is skipped.
        verify_expected_tokens: [verify_capacity] int64. -1: unknown, not compared.
        verify_expected_positions: [verify_capacity] int64.
        verify_prev_slot_indices: [verify_capacity] int64. Predecessor; negative: the chain starts here;
            0: the chain is not checked.
        verify_num_valid: [1] int32. Entries that count, at most the capacity.
        enable: [1] int32. 0: the plan did not fit and nothing is checked.
    """

    verify_slot_indices: Any
    verify_expected_tokens: Any
    verify_expected_positions: Any
    verify_prev_slot_indices: Any
    verify_num_valid: Any
    enable: Any

    zeros: ClassVar[Zeros] = staticmethod(no_zeros)

    @property
    def verify_capacity(self) -> int:
        """Entries the plan has room for."""
        return int(self.verify_slot_indices.shape[0])

    @classmethod
    def allocate(cls, verify_capacity: int, device: Any) -> Self:
        """An empty plan with room for `verify_capacity` entries. ValueError if that is not positive."""
        if verify_capacity <= 0:
            raise ValueError(messages.plan_capacity("VerifyPlan", "verify_capacity", verify_capacity))
        entries = (verify_capacity,)
        return cls(
            verify_slot_indices=cls.zeros(entries, "int64", device),
            verify_expected_tokens=cls.zeros(entries, "int64", device),
            verify_expected_positions=cls.zeros(entries, "int64", device),
            verify_prev_slot_indices=cls.zeros(entries, "int64", device),
            verify_num_valid=cls.zeros((1,), "int32", device),
            enable=cls.zeros((1,), "int32", device),
        )


@dataclass(frozen=True, kw_only=True)
class WritePlanBase:
    """Which of a forward's tokens belong to which lane, and where each lane's chain goes on.

    Attributes:
        write_offsets: [write_req_capacity + 1] int64. Lane r writes the tokens from write_offsets[r] on,
            up to and without write_offsets[r + 1].
        write_seed_slot_indices: [write_req_capacity] int64. Slot before a lane's first token; negative: none.
        write_num_valid_reqs: [1] int32. Lanes that count, padded ones included.
        verify_offsets: [write_req_capacity + 1] int64. Where each lane's verify entries begin: working memory
            of `launch_plan`, without meaning to anybody else.
    """

    write_offsets: Any
    write_seed_slot_indices: Any
    write_num_valid_reqs: Any
    verify_offsets: Any

    zeros: ClassVar[Zeros] = staticmethod(no_zeros)

    @property
    def write_req_capacity(self) -> int:
        """Lanes the plan has room for."""
        return int(self.write_seed_slot_indices.shape[0])

    @classmethod
    def allocate(cls, write_req_capacity: int, device: Any) -> Self:
        """An empty plan with room for `write_req_capacity` lanes. ValueError if that is not positive."""
        if write_req_capacity <= 0:
            raise ValueError(messages.plan_capacity("WritePlan", "write_req_capacity", write_req_capacity))
        return cls(
            write_offsets=cls.zeros((write_req_capacity + 1,), "int64", device),
            write_seed_slot_indices=cls.zeros((write_req_capacity,), "int64", device),
            write_num_valid_reqs=cls.zeros((1,), "int32", device),
            verify_offsets=cls.zeros((write_req_capacity + 1,), "int64", device),
        )


@dataclass(frozen=True, kw_only=True)
class ViolationLogBase:
    """What all launches report into.

    Attributes:
        ring: [ring_capacity, 8] int64, rows of the contract's violation layout (`consts.RING_*`).
        write_index: [1] int32. Violations so far; rows at or beyond the capacity were dropped.
        slot_run_counter: [1] int64. Entries that launches looked at or wrote.
        kernel_run_counter: [1] int64. Launches, those that had nothing to do included.
    """

    ring: Any
    write_index: Any
    slot_run_counter: Any
    kernel_run_counter: Any

    zeros: ClassVar[Zeros] = staticmethod(no_zeros)

    @property
    def ring_capacity(self) -> int:
        """Violations that are kept in full."""
        return int(self.ring.shape[0])

    @property
    def count(self) -> int:
        """Violations so far, dropped ones included. Waits for the device."""
        return int(self.write_index[0])

    def rows(self) -> Any:
        """[kept, 8] int64: the rows kept so far. Waits for the device."""
        return self.ring[: min(self.count, self.ring_capacity)]

    @classmethod
    def allocate(cls, ring_capacity: int, device: Any) -> Self:
        """An empty log. ValueError if `ring_capacity` is not positive."""
        if ring_capacity <= 0:
            raise ValueError(messages.plan_capacity("ViolationLog", "ring_capacity", ring_capacity))
        return cls(
            ring=cls.zeros((ring_capacity, RING_WORDS), "int64", device),
            write_index=cls.zeros((1,), "int32", device),
            slot_run_counter=cls.zeros((1,), "int64", device),
            kernel_run_counter=cls.zeros((1,), "int64", device),
        )


class ExpectedInputs(NamedTuple):
    """What a forward should have been given: both [num_tokens] int64, flat, in lane order."""

    tokens: Any
    positions: Any
