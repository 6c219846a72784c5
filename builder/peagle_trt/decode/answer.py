"""One answer as it grows: text, stop strings, and what may be sent already."""

from __future__ import annotations

from collections import deque

from peagle_trt.decode.text import TextStream


class Answer:
    """Collects an answer's tokens and releases those that no stop string can still take back.

    Args:
        stream: Incremental decoder, or None to work on ids alone (then there are no stop strings).
        stop_strings: Texts that end the answer and are cut from it.
    """

    def __init__(self, stream: TextStream | None, stop_strings: tuple[str, ...]) -> None:
        self._stream = stream
        self._stop_strings = tuple(stop for stop in stop_strings if stop)
        self._units: deque[tuple[tuple[int, ...], str]] = deque()
        self.is_stopped = False

    def push(self, token_id: int) -> None:
        """Take one token; sets `is_stopped` when a stop string is complete."""
        unit = ((token_id,), "") if self._stream is None else self._stream.push(token_id)
        if unit is not None:
            self._append(unit)

    def finish(self) -> None:
        """No more tokens will come: release everything that is held."""
        if self._stream is not None and not self.is_stopped:
            ids, text = self._stream.flush()
            if ids:
                self._append((ids, text))
        self._stop_strings = ()

    def release(self) -> tuple[tuple[int, ...], str]:
        """Tokens and text that can be sent now."""
        pending = sum(len(text) for _, text in self._units)
        limit = pending - self._open_suffix()
        ids: list[int] = []
        texts: list[str] = []
        taken = 0
        while self._units and taken + len(self._units[0][1]) <= limit:
            unit_ids, text = self._units.popleft()
            ids.extend(unit_ids)
            texts.append(text)
            taken += len(text)
        return tuple(ids), "".join(texts)

    def _append(self, unit: tuple[tuple[int, ...], str]) -> None:
        self._units.append(unit)
        if not self._stop_strings:
            return
        text = "".join(part for _, part in self._units)
        starts = [start for stop in self._stop_strings if (start := text.find(stop)) >= 0]
        if starts:
            self._cut(min(starts))
            self.is_stopped = True
            self._stop_strings = ()

    def _cut(self, length: int) -> None:
        """Keep the first `length` characters of what is pending, and the tokens that begin before the cut."""
        kept: deque[tuple[tuple[int, ...], str]] = deque()
        for ids, text in self._units:
            if length <= 0:
                break
            kept.append((ids, text[:length]))
            length -= len(text)
        self._units = kept

    def _open_suffix(self) -> int:
        """Length of the longest end of the pending text that could still grow into a stop string."""
        text = "".join(part for _, part in self._units)
        longest = 0
        for stop in self._stop_strings:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
