"""Runs batches: a few items at a time, batches in turn, in the class of downloads, within the quotas of their keys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import BinaryIO, ParamSpec, TypeVar

import anyio
import anyio.lowlevel

from tts_worker.audio.encoders import AudioFormat, open_encoder, wav_header
from tts_worker.callers import ApiScope, Caller, acting_as, current_caller
from tts_worker.errors import (
    Draining,
    ErrorCode,
    ErrorInfo,
    Forbidden,
    IllegalCommand,
    OverCapacity,
    TextTooLong,
    TTSWorkerError,
)
from tts_worker.features.batch.request import BatchItem, BatchRequest
from tts_worker.features.batch.settings import BatchSettings
from tts_worker.features.batch.store import (
    BatchFolder,
    ItemResult,
    StoredBatch,
    TemporaryFolder,
    UnreadableBatch,
    id_of_key,
    is_id,
    new_id,
    remove_abandoned_folders,
    stored_ids,
    unix_time_s,
)
from tts_worker.front_end.instruction import split_instruction
from tts_worker.server.rendering import synthesize
from tts_worker.session.hub import SessionHub
from tts_worker.types import BYTES_PER_SAMPLE, Ended, PcmFrame

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

TRANSPORT = "batch"

MAINTENANCE_S = 5.0
"""Interval at which expired batches are deleted, and those of crashed processes claimed."""
_CLOCK_JUMP_S = 60.0
_DISTRUST_S = 3_600.0
"""How long nothing expires after the clock has jumped: it may be set right again."""
_KEY_SHARE = 0.5
"""Part of ``max_bytes`` and ``MAX_RUNNING`` that the batches of one API key may take."""
MAX_RUNNING = 100
"""Unfinished batches."""
MAX_KEPT = 10_000
"""Finished batches of a key that are kept; beyond it its oldest are deleted."""
_MAX_ATTEMPTS = 3
"""How often an item is tried that fails with a retryable error of the engine."""
_RETRY_S = 1.0
_MAX_WAIT_S = 60.0
_WRITE_BYTES = 262_144

_WAITS = frozenset(
    {ErrorCode.OVER_CAPACITY, ErrorCode.QUOTA_EXCEEDED, ErrorCode.RATE_LIMITED, ErrorCode.NOT_READY, ErrorCode.DRAINING}
)
"""Refusals that are over after a while: the item waits, calls go first."""


@dataclass(slots=True)
class Batch:
    """A batch that this process runs, or a finished one.

    Attributes:
        stored: The accepted request.
        folder: Its folder, claimed by this process until the batch is finished.
        results: Finished items by number; added by ``add``.
        size: Bytes of the texts and of the finished audio.
        failures: Failed attempts of unfinished items, by number.
        has_unrecorded: The result of an item could not be stored, so that no other process may claim the batch.
        is_cancelled: The batch was deleted.
        resumes_at_s: Time of the event loop until which its key, or the worker, has refused it.
        changed: Set and replaced whenever an item finishes.
    """

    stored: StoredBatch
    folder: BatchFolder
    results: dict[int, ItemResult] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    has_unrecorded: bool = False
    is_cancelled: bool = False
    resumes_at_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[object]] = field(default_factory=set)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.request.text_bytes + sum(result.size for result in self.results.values())

    @property
    def request(self) -> BatchRequest:
        return self.stored.request

    @property
    def is_done(self) -> bool:
        return len(self.results) == len(self.request.items)

    def add(self, result: ItemResult) -> None:
        """Add a finished item and wake those who wait for it."""
        self.results[result.index] = result
        self.size += result.size
        self.notify()

    def notify(self) -> None:
        """Wake those who wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()


class BatchRunner:
    """The batches of a worker.

    Args:
        hub: Opens the sessions of the items.
        settings: Limits.
        max_input_chars: Limit of an item's text.
        caller_of: Returns the caller of a key by its name; None if the key is gone.
    """

    def __init__(
        self,
        hub: SessionHub,
        settings: BatchSettings,
        max_input_chars: int,
        caller_of: Callable[[str | None, str], Caller | None],
    ) -> None:
        self.settings = settings
        self._hub = hub
        self._max_input_chars = max_input_chars
        self.caller_of = caller_of
        self._temporary: TemporaryFolder | None = None
        self._directory = settings.directory
        self._batches: dict[str, Batch] = {}  # that this process runs or has adopted, by name
        self._unreadable: set[str] = set()  # ids that the log has named
        self._queue: list[tuple[Batch, int]] = []  # items that wait, batches in turn
        self._work = asyncio.Event()
        self._submission = asyncio.Lock()
        self._clock_offset_s = unix_time_s() - monotonic()
        self._distrusts_until_s = 0.0  # monotonic

    # -- requests -----------------------------------------------------------------------------------------------------

    async def submit(self, request: BatchRequest, idempotency_key: str | None = None) -> Batch:
        """Accept a batch for the current caller.

        Args:
            request: The batch.
            idempotency_key: While the batch with this key is kept, the same request is answered with it.

        Raises:
            InvalidRequest, TextTooLong: The batch exceeds a limit, or has an invalid lexicon.
            UnknownLexicon: It names a lexicon that is not stored.
            IllegalCommand: The batch with this key is another one.
            OverCapacity: Too many batches are running, kept ones fill the storage, or the disk is full.
            Forbidden: The key lacks the scope ``speak``, or the caller holds a token.
        """
        caller = _key_holder()
        caller.require(ApiScope.SPEAK)
        name = new_id() if idempotency_key is None else id_of_key(caller.key, idempotency_key)
        async with self._submission:  # a repetition waits for the answer to the first
            if (batch := await self.find(name)) is None:
                try:
                    return await self._accept(request, caller, name)
                except FileExistsError:
                    batch = await self.find(name)  # another worker with this directory was first
                except OSError as error:
                    log.error("cannot store a batch: %s", error.strerror)
                    raise OverCapacity("the worker cannot store the batch", retry_after_s=60.0) from None
            if batch is None:
                raise OverCapacity(
                    "the batch of this Idempotency-Key is being deleted, or was stored by another version",
                    retry_after_s=1.0,
                )
            if batch.request != request:
                raise IllegalCommand("this Idempotency-Key was used for another batch")
            return batch

    async def _accept(self, request: BatchRequest, caller: Caller, name: str) -> Batch:
        request.check()
        for lexicon in request.lexicons:
            await self._hub.lexicons.prepare(lexicon)
        if request.text_bytes + request.break_bytes > self._max_bytes(caller.key):
            raise TextTooLong("the breaks of the batch alone exceed its storage (batch.max_bytes)")
        running = [batch for batch in self._batches.values() if not batch.is_done]
        if len(running) >= MAX_RUNNING:
            raise OverCapacity(f"all {len(running)} batches are running", retry_after_s=60.0)
        if sum(batch.stored.owner == caller.key for batch in running) >= self._max_running(caller.key):
            raise OverCapacity("this API key has its share of running batches", retry_after_s=60.0)
        try:
            await self._make_room(request.text_bytes, caller.key)
        except StorageFull:
            raise OverCapacity("the results of other batches fill the storage", retry_after_s=60.0) from None
        stored = StoredBatch(id=name, owner=caller.key, created_at_s=unix_time_s(), request=request)
        folder = BatchFolder(await self._open_directory(), stored.id)
        batch = Batch(stored, folder)
        self._batches[stored.id] = batch  # before it is written: maintenance must not claim it
        try:
            await _to_thread(folder.create, stored)
        except BaseException as error:
            del self._batches[stored.id]
            if not isinstance(error, FileExistsError):
                await asyncio.shield(asyncio.to_thread(folder.delete))  # its id may be submitted again
            raise
        self._enqueue(batch)
        return batch

    async def find(self, name: str) -> Batch | None:
        """Return a batch of the current caller, or any for a key with the scope ``admin``.

        One that another process runs is a copy of its state.

        Raises:
            Forbidden: The caller holds a token.
        """
        caller = _key_holder()
        batch = self._batches.get(name)
        if batch is not None and batch.is_done and await asyncio.to_thread(batch.folder.is_lost):
            self._forget(batch)
            batch = None
        if batch is None and is_id(name) and self._directory is not None:
            folder = BatchFolder(self._directory, name)
            with suppress(UnreadableBatch):  # its owner is unknown
                if (content := await asyncio.to_thread(folder.read)) is not None:
                    batch = Batch(content[0], folder, content[1])
        if batch is None or (batch.stored.owner != caller.key and ApiScope.ADMIN not in caller.scopes):
            return None
        return batch

    async def list(self) -> list[Batch]:
        """Return the batches of the current caller, the newest first. Raises as ``find`` does."""
        _key_holder()
        directory = self._directory
        names = set(self._batches)
        if directory is not None:
            names.update(await asyncio.to_thread(stored_ids, directory))
        found = [batch for name in names if (batch := await self.find(name)) is not None]
        return sorted(found, key=lambda batch: batch.stored.created_at_s, reverse=True)

    async def wait(self, batch: Batch, index: int) -> ItemResult | None:
        """Wait until an item is finished; None if the batch is deleted before.

        Raises:
            Draining: The worker is shutting down and does not begin the item.
        """
        while (result := batch.results.get(index)) is None and not batch.is_cancelled:
            running = self._batches.get(batch.stored.id)
            if self._hub.draining and not (running is not None and running.tasks):
                raise Draining("the worker is shutting down; the batch continues at its next start, or elsewhere")
            if running is batch:
                with anyio.move_on_after(_RETRY_S):  # a drain changes no batch
                    await batch.changed.wait()
            elif running is not None:  # ``batch`` is a copy, and this process has taken over meanwhile
                return await self.wait(running, index)
            elif (found := await asyncio.to_thread(batch.folder.result, index)) is not None:
                batch.add(found)
            elif not await asyncio.to_thread(batch.folder.path.exists):
                return None
            else:
                await asyncio.sleep(_RETRY_S)  # another process runs it
        return result

    async def delete(self, batch: Batch) -> None:
        """Cancel a batch and delete its results; ``batch`` may be a copy of one that this process runs."""
        running = self._batches.pop(batch.stored.id, batch)
        running.is_cancelled = batch.is_cancelled = True
        self._queue = [entry for entry in self._queue if entry[0] is not running]
        for task in running.tasks:
            task.cancel()
        if running.tasks:
            await asyncio.wait(running.tasks)
        if not await asyncio.to_thread(running.folder.is_lost):  # the folder of that name may be another batch by now
            await asyncio.to_thread(running.folder.delete)
        running.folder.release()
        adopted = self._batches.get(batch.stored.id)  # maintenance took it over meanwhile, or it was submitted again
        if adopted is not None and await asyncio.to_thread(adopted.folder.is_lost):
            self._forget(adopted)
        running.notify()
        batch.notify()

    def expires_at_s(self, batch: Batch) -> float:
        """The Unix time after which the batch is deleted, finished or not."""
        return batch.stored.created_at_s + self.settings.keep_s

    # -- execution ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run batches until cancelled; items in progress are then synthesized again by the next process."""
        workers = [asyncio.create_task(self._run_items(), name="batch") for _ in range(self.settings.parallel)]
        try:
            await asyncio.to_thread(remove_abandoned_folders)
            while True:
                try:
                    await self.maintain()
                except OSError as error:
                    log.warning("batches: the directory cannot be read: %s", error.strerror)
                await asyncio.sleep(MAINTENANCE_S)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
            for batch in self._batches.values():
                batch.folder.release()
            if self._temporary is not None:
                self._temporary.remove()

    def _enqueue(self, batch: Batch) -> None:
        """Queue the unfinished items so that batches take turns."""
        missing = [(batch, index) for index in range(len(batch.request.items)) if index not in batch.results]
        turns: dict[str, int] = {}
        ranked = []
        for entry in [*self._queue, *missing]:
            turn = turns[entry[0].stored.id] = turns.get(entry[0].stored.id, 0) + 1
            ranked.append((turn, entry))
        self._queue = [entry for _, entry in sorted(ranked, key=lambda each: each[0])]
        self._work.set()

    async def _run_items(self) -> None:
        while True:
            batch, index = await self._next_item()
            # A separate task, so that deleting the batch cancels the item only.
            task = asyncio.create_task(self._run_item(batch, index), name=f"batch-{batch.stored.id}-{index}")
            batch.tasks.add(task)
            try:
                await asyncio.wait({task})
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})
                batch.tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("batch %s, item %d failed", batch.stored.id, index, exc_info=error)

    async def _next_item(self) -> tuple[Batch, int]:
        """Wait for an item; one whose batch was refused does not hold up the others."""
        while True:
            self._work.clear()
            now_s = asyncio.get_running_loop().time()
            for position, (batch, _) in enumerate(self._queue):
                if batch.resumes_at_s <= now_s:
                    return self._queue.pop(position)
            resumes_at_s = min((batch.resumes_at_s for batch, _ in self._queue), default=now_s + _MAX_WAIT_S)
            with anyio.move_on_after(resumes_at_s - now_s):
                await self._work.wait()

    async def _run_item(self, batch: Batch, index: int) -> None:
        item = batch.request.items[index]
        while True:
            try:
                with acting_as(self._caller(batch)):
                    result = await self._synthesize(batch, index, item)
                break
            except TTSWorkerError as error:
                if error.retryable and error.code in _WAITS:
                    wait_s = min(error.retry_after_s or _RETRY_S, _MAX_WAIT_S)
                    batch.resumes_at_s = asyncio.get_running_loop().time() + wait_s
                    self._queue.insert(0, (batch, index))
                    return
                # Counted in the batch: between two attempts the key may be refused, and the item queued again.
                batch.failures[index] = batch.failures.get(index, 0) + 1
                if not error.retryable or batch.failures[index] == _MAX_ATTEMPTS:
                    result = ItemResult(index, error=error.info)
                    break
                await asyncio.sleep(error.retry_after_s or _RETRY_S)
            except FileNotFoundError:
                self._forget(batch)
                return
            except OSError as error:
                log.error("batch %s, item %d cannot be stored: %s", batch.stored.id, index, error.strerror)
                result = ItemResult(index, error=_storage_error(error))
                break
            except Exception:
                log.exception("batch %s, item %d failed", batch.stored.id, index)
                result = ItemResult(index, error=ErrorInfo(ErrorCode.INTERNAL, "internal error"))
                break
        try:
            await asyncio.to_thread(batch.folder.finish, result)
        except FileNotFoundError:
            self._forget(batch)
            return
        except OSError as error:  # it is not recorded: the next process tries again
            log.error("batch %s, item %d cannot be stored: %s", batch.stored.id, index, error.strerror)
            result = ItemResult(index, error=_storage_error(error))
            batch.has_unrecorded = True
        batch.add(result)
        if batch.is_done:
            failed = sum(each.error is not None for each in batch.results.values())
            log.info("batch %s is done: %d items, %d failed", batch.stored.id, len(batch.results), failed)
            if not batch.has_unrecorded:
                batch.folder.release()

    def _caller(self, batch: Batch) -> Caller:
        """The caller of a batch with its quotas of today."""
        caller = self.caller_of(batch.stored.owner, TRANSPORT)
        if caller is None:
            raise Forbidden(f'the API key "{batch.stored.owner}" of the batch is no longer valid')
        return caller

    async def _synthesize(self, batch: Batch, index: int, item: BatchItem) -> ItemResult:
        if len(item.input) > self._max_input_chars:
            raise TextTooLong(f"input may have at most {self._max_input_chars} characters")
        encoder = open_encoder(batch.request.response_format, batch.request.rate_hz)
        options = batch.request.options(item)
        text, instruct = split_instruction(item.input, options.instruct)
        stream = await _open_audio(batch.folder, index)
        pending = bytearray()
        size = samples = 0
        ended: list[Ended] = []
        try:
            speech = synthesize(self._hub, replace(options, instruct=instruct), text, ended.append)
            async with aclosing(speech) as parts:
                async for part in parts:
                    if not isinstance(part, PcmFrame):
                        continue
                    pending += encoder.encode(part.pcm)
                    samples += part.samples
                    if len(pending) >= _WRITE_BYTES:
                        size += await _write(stream, pending)
                        await self._make_room(size, batch.stored.owner)
            pending += encoder.finish()
            size += await _write(stream, pending)
            if batch.request.response_format is AudioFormat.WAV:  # a stream's header does not know the size
                header = wav_header(batch.request.rate_hz, samples * BYTES_PER_SAMPLE)
                await asyncio.to_thread(_write_start, stream, header)
        finally:
            await _to_thread(stream.close)
        if (signer := self._hub.config.file_signer) is not None:
            size = await _to_thread(batch.folder.sign, index, signer, batch.request.response_format)
        await self._make_room(size, batch.stored.owner)
        start = len(item.input) - len(text)  # behind the instruction
        runs = [run for each in ended for run in each.receipt.skipped]
        skipped = tuple(replace(run, start=start + run.start, end=start + run.end) for run in runs)
        return ItemResult(index, size, samples, skipped)

    # -- maintenance --------------------------------------------------------------------------------------------------

    async def _open_directory(self) -> Path:
        if self._directory is None:
            self._temporary = await asyncio.to_thread(TemporaryFolder)
            self._directory = self._temporary.path
        return self._directory

    def _max_bytes(self, owner: str | None) -> int:
        """What the batches of a key may take of the storage; without keys all of it."""
        return self.settings.max_bytes if owner is None else int(self.settings.max_bytes * _KEY_SHARE)

    def _max_running(self, owner: str | None) -> int:
        return MAX_RUNNING if owner is None else int(MAX_RUNNING * _KEY_SHARE)

    def _finished(self) -> Sequence[Batch]:
        return [batch for batch in self._batches.values() if batch.is_done]

    async def _make_room(self, size: int, owner: str | None) -> None:
        """Delete the oldest finished batches of a key until ``size`` bytes fit; those of other keys stay.

        Args:
            size: Bytes to be stored.
            owner: Name of the API key.

        Raises:
            StorageFull: They cannot fit. Then nothing was deleted.
        """
        own = [batch for batch in self._batches.values() if batch.stored.owner == owner]
        total = sum(batch.size for batch in self._batches.values())
        excess = max(
            total + size - self.settings.max_bytes, sum(batch.size for batch in own) + size - self._max_bytes(owner)
        )
        finished = sorted((each for each in own if each.is_done), key=lambda batch: batch.stored.created_at_s)
        if excess > sum(batch.size for batch in finished):
            raise StorageFull("the results of batches fill the storage (batch.max_bytes)")
        surplus = len(finished) - MAX_KEPT
        for oldest in finished:
            if excess <= 0 and surplus <= 0:
                return
            log.info("batch %s is deleted to make room for others of its key", oldest.stored.id)
            excess -= oldest.size
            surplus -= 1
            await self.delete(oldest)

    def _forget(self, batch: Batch) -> None:
        """Forget a batch whose folder another process has deleted."""
        batch.is_cancelled = True
        self._batches.pop(batch.stored.id, None)
        self._queue = [entry for entry in self._queue if entry[0] is not batch]
        batch.folder.release()
        batch.notify()

    async def maintain(self) -> None:
        now_s = unix_time_s()
        if is_clock_trusted := self._is_clock_trusted(now_s):
            for batch in list(self._batches.values()):
                if now_s > self.expires_at_s(batch):
                    await self.delete(batch)
        finished = self._finished()
        for batch in await asyncio.to_thread(lambda: [each for each in finished if each.folder.is_lost()]):
            self._forget(batch)
        if self.settings.directory is None:
            return
        for name in await asyncio.to_thread(stored_ids, self.settings.directory):
            if name not in self._batches:
                await self._adopt(name, now_s, may_expire=is_clock_trusted)

    def _is_clock_trusted(self, now_s: float) -> bool:
        """Whether the clock of the system has not jumped a while ago."""
        monotonic_s = monotonic()
        jump_s = now_s - monotonic_s - self._clock_offset_s
        self._clock_offset_s += jump_s
        if abs(jump_s) > _CLOCK_JUMP_S:
            log.warning("batches: the clock has jumped by %.0f s; none expires for an hour", jump_s)
            self._distrusts_until_s = monotonic_s + _DISTRUST_S
        return monotonic_s >= self._distrusts_until_s

    async def _adopt(self, name: str, now_s: float, *, may_expire: bool) -> None:
        """Continue a batch that no process runs."""
        assert self.settings.directory is not None
        folder = BatchFolder(self.settings.directory, name)
        batch = None
        try:
            if not await _to_thread(folder.claim):
                return
            content = await _to_thread(folder.read)
            if content is not None and name not in self._batches:  # deleted and submitted again meanwhile
                batch = self._batches[name] = Batch(content[0], folder, content[1])
            elif content is None and await _age_s(folder, now_s) > MAINTENANCE_S:
                await _to_thread(folder.delete)  # without a request it is of no use
        except UnreadableBatch as error:  # left to the version that stored it, as long as any batch is kept
            if may_expire and await _age_s(folder, now_s) > self.settings.keep_s:
                await _to_thread(folder.delete)
            elif name not in self._unreadable:
                log.warning("%s; it was stored by a newer version, or is damaged, and is left alone", error)
                self._unreadable.add(name)
        except OSError:
            return  # deleted meanwhile
        finally:
            if batch is None or batch.is_done:
                folder.release()
        if batch is None:
            return
        if await asyncio.to_thread(folder.is_lost):
            self._forget(batch)
        elif not batch.is_done:
            log.info("batch %s continues: %d of %d items", name, len(batch.results), len(batch.request.items))
            self._enqueue(batch)


def _key_holder() -> Caller:
    """Return the current caller.

    Raises:
        Forbidden: It holds a token of a key: a page, which anyone can open, must not see what the key has synthesized.
    """
    caller = current_caller()
    if caller.token is not None:
        raise Forbidden("a token gives no access to batches: they belong to the API key")
    return caller


async def _age_s(folder: BatchFolder, now_s: float) -> float:
    return now_s - (await asyncio.to_thread(folder.path.stat)).st_mtime


async def _to_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread. A cancellation waits for its end: it may take the lock of a folder."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # mark it as retrieved
        raise


async def _open_audio(folder: BatchFolder, index: int) -> BinaryIO:
    """Open the audio of an item for writing. A cancellation waits for the file and closes it."""
    opening = asyncio.ensure_future(asyncio.to_thread(folder.open_audio, index))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            opening.result().close()
        raise


class StorageFull(OverCapacity):
    """Waiting does not help: running batches fill the storage."""

    retryable = False


def _storage_error(error: OSError) -> ErrorInfo:
    return ErrorInfo(ErrorCode.INTERNAL, f"the audio cannot be stored: {error.strerror}", retryable=True)


async def _write(stream: BinaryIO, pending: bytearray) -> int:
    data = bytes(pending)
    pending.clear()
    await asyncio.to_thread(stream.write, data)
    await anyio.lowlevel.checkpoint()
    return len(data)


def _write_start(stream: BinaryIO, data: bytes) -> None:
    stream.seek(0)
    stream.write(data)
