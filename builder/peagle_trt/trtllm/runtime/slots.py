"""Which rows of the drafter's cache a request owns: kept on the host, looked up before every step."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

from peagle_trt.errors import MachineError, PlanError

logger = logging.getLogger(__name__)


class SlotTable:
    """Slots by request; the longest unused one goes to the next newcomer, and one more serves padding.

    TensorRT-LLM tells a worker nothing of requests that ended, so slots are not given back but taken over. There are as
    many as requests may be in flight, and every request in flight is used again sooner than one that ended.

    Args:
        num_slots: Requests that may be in flight.

    Attributes:
        scratch: The slot of requests that never read a prompt here: padding of CUDA graphs, and warm-up.
    """

    def __init__(self, num_slots: int) -> None:
        self.scratch = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._lengths: dict[int, int] = {}
        self._lost: set[int] = set()

    @property
    def num_rows(self) -> int:
        """Slots of the cache, the one for padding included."""
        return self.scratch + 1

    def read_chunk(self, request_id: int, start: int, length: int, batch: Sequence[int]) -> int:
        """The slot for the next piece of a prompt.

        Args:
            request_id: The request.
            start: Tokens of it that the target's cache held before this piece.
            length: Tokens of this piece.
            batch: Requests of the step, which keep their slots.

        Raises:
            PlanError: Tokens before `start` were never read here, so the drafter would be blind to them.
            MachineError: More requests than slots share a step.
        """
        known = self._lengths.get(request_id, 0) if request_id in self._slots else 0
        if start not in (0, known):
            raise PlanError(
                f"request {request_id} goes on at token {start}, and the drafter has read {known}: its cache cannot "
                "follow tokens that the target took over from another request",
                hint="set `kv_cache_config: {enable_block_reuse: false}`",
            )
        slot = self._slots.pop(request_id, None)
        if slot is None:
            slot = self._take(batch)
        self._slots[request_id] = slot
        self._lengths[request_id] = start + length
        self._lost.discard(request_id)
        return slot

    def find(self, request_ids: Sequence[int]) -> list[int]:
        """The slot of every request of a step that reads no prompt; the one for padding where there is none."""
        return [self._find(request_id) for request_id in request_ids]

    def _find(self, request_id: int) -> int:
        if request_id in self._slots:
            self._slots.move_to_end(request_id)
            return self._slots[request_id]
        if request_id in self._lost:
            self._lost.discard(request_id)
            logger.warning("request %d lost its place in the drafter's cache; its drafts will be poor", request_id)
        return self.scratch

    def _take(self, batch: Sequence[int]) -> int:
        if self._free:
            return self._free.pop()
        kept = set(batch)
        for request_id in self._slots:
            if request_id not in kept:
                del self._lengths[request_id]
                self._lost.add(request_id)
                return self._slots.pop(request_id)
        raise MachineError(
            f"more requests share a step than the build's {self.scratch}",
            hint="lower `max_batch_size`, or build with a larger --max-batch-size",
        )
