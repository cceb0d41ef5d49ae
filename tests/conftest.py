"""Shared fixtures: a worker with the tone engine, and a server on a real port."""

from __future__ import annotations

import os

# Tiny tensors on a shared machine: threads that wait for each other cost more than they compute. NumPy and PyTorch read
# it when they are imported, below and in the servers that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import asyncio
import gc
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as examples
from xdist.scheduler import LoadScopeScheduling

from tests.fakes.heap import Heap
from tts_worker.serving import serve
from tts_worker.settings import Settings, load_settings
from tts_worker.voices import packs as voice_pack
from tts_worker.worker import Worker, running_worker

# Without byte code on disk every process that a test starts compiles the package again, and every run rewrites the
# assertions of all test modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The import of the test modules makes a million objects and hardly any garbage.
gc.disable()

# The duration of an example depends on the load of the machine; pytest-timeout ends hanging examples. Every run tries
# the same examples, so that a failure follows from the change; --hypothesis-profile thorough looks for new ones.
ANY_MACHINE: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
examples.register_profile("same examples", **ANY_MACHINE, derandomize=True)
examples.register_profile("thorough", **ANY_MACHINE, derandomize=False, max_examples=1_000, print_blob=True)
examples.load_profile("same examples")

SLOW = (
    "behavior/",
    "browser/",
    "features/test_deletion.py",
    "gpu/",
    "features/agent/test_agent.py",
    "features/batch/test_batch.py",
    "features/batch/test_batch_client.py",
    "integration/test_capacity.py",
    "features/compat/test_cartesia.py",
    "integration/test_cli.py",
    "integration/test_chunks.py",
    "integration/test_client.py",
    "integration/test_connections.py",
    "features/conversion/test_conversion.py",
    "integration/test_cosyvoice_300m.py",
    "features/compat/test_cosyvoice_http.py",
    "features/compat/test_elevenlabs.py",
    "integration/test_entrances.py",
    "integration/test_first_request.py",
    "integration/test_golden_chunks.py",
    "integration/test_full_disk.py",
    "integration/test_grpc_limits.py",
    "features/grpc/test_models.py",
    "features/fleet/test_up.py",
    "integration/test_leaks_and_races.py",
    "integration/test_logs.py",
    "integration/test_lost_device.py",
    "integration/test_loudness.py",
    "integration/test_models.py",
    "features/compat/test_openai_plugin.py",
    "features/fleet/test_ray.py",
    "features/fleet/test_redis_failover.py",
    "features/fleet/test_registry_fleet.py",
    "integration/test_reload.py",
    "features/tracing/test_traces.py",
    "integration/test_tts.py",
    "features/compat/test_vendor_errors.py",
    "integration/test_voices.py",
    "features/webrtc/test_webrtc.py",
    "integrations/",
    "parity/",
    "property/test_call_admission.py",
    "property/test_fair_schedule.py",
    "property/test_playback_lead.py",
    "property/test_simulated_engine.py",
    "property/test_text_pipeline.py",
    "quality/",
    "simulation/",
    "unit/tools/bench/",
    "unit/tools/test_lm_step_graph.py",
    "unit/tools/test_random_bundle.py",
    "unit/tools/test_reference.py",
    "features/voicepack/test_directory.py",
    "unit/commands/test_doctor_backends.py",
    "features/acceleration/",
    "features/offline/",
    "features/voicepack/test_commands.py",
    "unit/cosyvoice/",
    "unit/engine/test_mandarin.py",
    "unit/engine/test_process.py",
    "unit/models/test_hyperyaml.py",
    "unit/models/test_onnx_file.py",
    "features/voicepack/test_pull.py",
    "unit/streaming/",
    "unit/test_compare_upstream.py",
    "unit/text/test_english_reading.py::test_every_character_can_be_read",
    "unit/text/test_english_reading.py::test_every_match_has_what_its_rule_needs",
    "features/languages/test_chinese.py::test_time_is_linear_in_hostile_text",
    "unit/text/test_reading_score.py",
    "unit/test_distribution.py",
    "unit/test_fast_subset.py",
    "unit/train/",
    "unit/voices/test_files.py",
    "features/bench/test_capacity.py",
    "integration/test_how_do_i.py",
    "integration/test_stored_data.py",
    "integration/test_walks.py",
    "features/marking/test_paths.py",
    "features/marking/test_stream.py",
    "unit/tools/test_expression_figures.py",
    "features/languages/test_values.py",
    "unit/audio/test_loudness.py",
    "unit/client/test_remote.py",
    "unit/commands/test_installation.py::test_help_of_no_command_needs_torch",
    "unit/engine/test_arrival_order.py",
    "unit/engine/test_engine_exit.py",
    "unit/engine/test_hibari.py",
    "contract/test_reading_characters.py",
    "unit/test_engine_state.py",
    "unit/test_layers.py::test_base_install_needs_no_extra",
    "unit/test_private_names.py",
    "unit/test_routing.py::test_a_server_starts_without_fastapi",
    "features/formulas/test_formulas.py::test_delimiters_hold_a_formula",
    "features/formulas/test_formulas.py::test_formulas_do_not_depend_on_the_split",
    "features/formulas/test_formulas.py::test_words_of_a_formula_have_no_signs",
    "features/languages/test_worldwide.py::test_hostile_text_is_read_in_linear_time",
    "unit/voices/test_installed.py",
)
"""Tests that are marked ``slow``, by folder, file or name: they take seconds, start processes or import PyTorch."""

WEEKLY = (
    "browser/test_docs.py",
    "browser/test_page_accessibility.py::test_disabled_buttons_look_disabled[none]",
    "browser/test_page_accessibility.py::test_voice_of_many_languages_fits_its_card[900]",
    "browser/test_page_at_rest.py::test_transport_that_does_not_work_is_disabled[pages1",
    "features/acceleration/test_audio_launches.py",
    "features/acceleration/test_compile.py",
    "features/acceleration/test_fused_audio.py",
    "features/acceleration/test_kernel_variants.py",
    "features/acceleration/test_lm_launches.py",
    "features/acceleration/test_onnx_graphs.py",
    "features/acceleration/test_onnx_runtime.py",
    "features/acceleration/test_tensorrt.py",
    "features/bench/test_capacity.py::test_signal_ends_the_processes_of_the_measurement[15]",
    "features/fleet/test_ray.py",
    "features/fleet/test_up.py::test_addresses_of_each_worker_are_printed[json]",
    "integration/test_how_do_i.py::test_find_how_many_calls_a_machine_holds_know_what_a_minute_of_speech_costs[costs]",
    "integration/test_walks.py",
    "parity/test_runner.py::test_flow_stages_stay_on_the_device",
    "parity/test_runner.py::test_stages_of_cosyvoice_300m_stay_on_the_device",
    "quality/test_cpu_voices.py::test_mandarin_voice_speaks_english",
    "quality/test_cpu_voices.py::test_unintelligible_mandarin_fails_the_gate",
    "quality/test_cpu_voices.py::test_words_of_the_voice_are_understood[af_kore]",
    "quality/test_nano_voice.py::test_call_says_the_same_beside_another_one",
    "quality/test_nano_voice.py::test_most_words_are_understood",
    "quality/test_nano_voice.py::test_pause_between_two_chunks_is_inaudible",
    "unit/streaming/test_contract.py::test_streaming_engine_contract[v2-overlap",
    "unit/streaming/test_device.py",
    "unit/streaming/test_session.py::test_engine_benchmark_needs_minimal_packages",
    "unit/streaming/test_simulated_cuda.py",
    "unit/test_distribution.py::test_installed_wheel_completes_commands[fish]",
    "unit/test_distribution.py::test_installed_wheel_completes_commands[zsh]",
    "unit/tools/bench/test_command_line.py",
    "unit/tools/bench/test_engine.py",
    "unit/tools/bench/test_fairness.py",
    "unit/tools/bench/test_frames.py",
    "unit/tools/bench/test_gpu.py",
    "unit/tools/bench/test_gpu_flashinfer.py",
    "unit/tools/bench/test_gpu_sections.py",
    "unit/tools/bench/test_simulate.py",
    "unit/tools/bench/test_text.py",
    "unit/tools/test_lm_step_graph.py",
    "unit/tools/test_random_bundle.py",
    "unit/tools/test_reference.py",
    "unit/train/test_fast.py",
    "unit/train/test_fast_package.py::test_packed_voices_are_complete",
    "unit/train/test_fast_package.py::test_voices_join_those_with_the_same_network",
    "unit/train/test_filters.py",
    "unit/train/test_finetune.py",
    "unit/train/test_recordings.py",
    "unit/train/test_stages.py",
    "unit/train/test_teacher.py",
)
"""Modules and tests that are marked ``long``: a Ray cluster, the makers' training and measuring, what only a GPU runs,
the page /docs, the walks through the code, a second case of what others show, and the demonstration voice, whose
weights are compared with those scored in every run. No other area needs them, and they cost as much as the browser.
Named on the command line, they run."""

SAMPLES = (
    "behavior/test_behavior.py::test_behavior_in_virtual_time",
    "behavior/test_behavior.py::test_behavior[grpc-stop_ends_speech_within_50_ms]",
    "features/batch/test_batch.py::test_results_are_those_of_single_requests",
    "features/tracing/test_traces.py::test_websocket_utterances_become_spans",
    "features/test_deletion.py::test_sections_of_features_are_settings",
    "features/voicepack/test_pull.py::test_complete_directory_is_not_downloaded_again",
    "integration/test_golden_chunks.py::",  # CosyVoice, in a process of its own
    "integrations/test_pipecat.py::test_turn_is_one_utterance_with_words_and_metrics",
    "simulation/test_promises.py::",
    "simulation/test_worker_simulator.py::test_promises_hold_in_the_world_of_a_seed[4]",
)
"""Tests of ``SLOW`` that are not marked, so that the fast subset has some of every area."""

MAX_FAST_CPU_S = 5.0
"""Processor time that a test of the fast subset may take, with the processes that it starts."""

TOGETHER = (
    "tests/unit/streaming/",  # loaded networks
    "tests/browser/",  # a browser and a server
    "tests/behavior/",
    "tests/quality/",  # a recognizer
    "tests/unit/cosyvoice/",  # loaded networks
    "tests/parity/",
    "tests/features/acceleration/",  # exported graphs, PyTorch's compiler
    "tests/features/fleet/test_ray.py",  # waits for processes most of the time
)
"""Folders whose tests run in one process, which share what is expensive to make. They compute most of the time."""

COMPUTING = (
    "tests/features/test_deletion.py",
    "tests/integration/test_cli.py",
    "tests/unit/text/test_reading_score.py",
    "tests/integration/test_golden_chunks.py",
    "tests/unit/test_distribution.py",
)
"""Modules that compute most of the time, too."""

WITHOUT_TORCH = ("torch", "tokenizers")
"""What the extra "cosyvoice" installs. PyTorch comes later than others to a new version of Python."""

TESTS = Path(__file__).parent
VOICE_PACKS = TESTS.parent / "voicepacks"

TONE: dict[str, Any] = {"engines": {"tone": {"kind": "tone"}}}


def tone_settings(**sections: Any) -> Settings:
    """Settings with the tone engine, and further sections such as ``session={"max_sessions": 2}``."""
    return load_settings(flags={**TONE, **sections})


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Run the event loop until ``condition`` holds; fail at the time limit."""
    with anyio.fail_after(timeout_s):
        for turn in count():
            if condition():
                return
            # Other threads change the condition without a signal. A long wait leaves the processor to them.
            await asyncio.sleep(0 if turn < 500 else 0.001)


class _ModuleOfAnExtra(pytest.Module):
    """A test module that is skipped if it imports PyTorch, which is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            missing = error.__cause__
            if not (isinstance(missing, ModuleNotFoundError) and missing.name in WITHOUT_TORCH):
                raise
        pytest.skip(f"needs {missing.name}: pip install 'tts-worker[cosyvoice]'", allow_module_level=True)


def cpu_s() -> float:
    """Return the processor time of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test that finds out late that PyTorch is not installed; fail one that is too slow for the fast subset."""
    is_fast_subset = item.config.option.markexpr == "not slow"
    begun_s = cpu_s() if is_fast_subset else 0.0
    try:
        result = yield
        if is_fast_subset and (took_s := cpu_s() - begun_s) > MAX_FAST_CPU_S:
            pytest.fail(f"{took_s:.1f} s of processor time: add it to SLOW in tests/conftest.py", pytrace=False)
        return result
    except ModuleNotFoundError as error:
        if error.name in WITHOUT_TORCH and find_spec(error.name) is None:
            pytest.skip(f"needs {error.name}: pip install 'tts-worker[cosyvoice]'")
        raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return _ModuleOfAnExtra.from_parent(parent, path=module_path)


@lru_cache
def is_slow(path: Path) -> bool:
    return path.relative_to(TESTS).as_posix().startswith(SLOW)


@lru_cache
def is_weekly(path: Path) -> bool:
    """Whether a module has no other tests than long ones."""
    return path.relative_to(TESTS).as_posix().startswith(WEEKLY)


@lru_cache
def has_samples(path: Path) -> bool:
    return any(TESTS / sample.partition("::")[0] == path for sample in SAMPLES)


def load_above_cores(load: float, cores: int) -> str | None:
    """Describe a load of the machine above its cores, which explains slow tests and failed timing tests."""
    if load <= cores:
        return None
    return f"machine: load {load:.1f} on {cores} core{'s' * (cores > 1)}: tests are slower, and timing tests may fail"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Make the load of the machine the first line, also with ``-q``, which leaves out pytest's own header."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")  # a process of pytest-xdist has none
    if reporter is None or not hasattr(os, "getloadavg"):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if (line := load_above_cores(os.getloadavg()[0], cores)) is not None:
        reporter.write_line(line, yellow=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import modules of which no test is run: slow ones, with PyTorch and others, and long ones."""
    if not collection_path.is_file():
        return None
    no_fast = config.option.markexpr == "not slow" and is_slow(collection_path) and not has_samples(collection_path)
    return True if no_fast or (is_weekly(collection_path) and leaves_out(collection_path, config)) else None


def folder_in_one_process(nodeid: str) -> str | None:
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), None)


def scope_of(nodeid: str) -> str:
    """What a process of pytest-xdist gets at once: a folder of ``TOGETHER`` or a module."""
    return folder_in_one_process(nodeid) or nodeid.partition("::")[0]


def turns_of(items: Iterable[pytest.Item]) -> dict[str, float]:
    """When a scope is given to a process, from 0 to 1.

    Most slow modules wait for audio in real time or for a process, so what computes is spread among them: then both
    processors have work all the time. Fast modules have no turn: they fill the gaps of the end.
    """
    computing = (*TOGETHER, *COMPUTING)
    slow = dict.fromkeys(scope_of(item.nodeid) for item in items if is_slow(item.path))
    waiting = [scope for scope in slow if scope not in computing]
    return {scope: turn / len(scopes) for scopes in (computing, waiting) for turn, scope in enumerate(scopes)}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run also what the suite has others of its kind for")


def is_named(module: Path, arguments: Iterable[str]) -> bool:
    """Whether the command line names a module, with or without tests of it."""
    return module in {Path(argument.partition("::")[0]).resolve() for argument in arguments}


def leaves_out(module: Path, config: pytest.Config) -> bool:
    """Whether the long tests of a module are left out."""
    return not (config.option.long or is_named(module, config.args))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(WEEKLY):
            item.add_marker(pytest.mark.long)
    if not config.option.long:
        left_out = {item for item in items if item.get_closest_marker("long") and leaves_out(item.path, config)}
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if name.startswith(SLOW) and not name.startswith(SAMPLES):
            item.add_marker(pytest.mark.slow)
    turns = turns_of(items)
    items.sort(key=lambda item: turns.get(scope_of(item.nodeid), 1.0))


class FolderScheduling(LoadScopeScheduling):
    """Gives a process of pytest-xdist one scope at a time, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FolderScheduling:
    config.option.loadscopereorder = False
    return FolderScheduling(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the modules and tests, a million objects, out of garbage collections, and let these happen less often."""
    if session.config.option.markexpr == "not slow" and "torch" in sys.modules:
        raise pytest.UsageError("a module of the fast subset imports PyTorch: add it to SLOW in tests/conftest.py")
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    async with running_worker(tone_settings()) as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def no_collection_per_worker() -> Iterator[None]:
    """Skip the garbage collection at worker start, which would take a minute over hundreds of workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tts_worker.worker.gc", Heap())
        yield


@pytest.fixture(scope="session", autouse=True)
def shipped_voice_packs_are_read_once() -> Iterator[None]:
    """Every worker reads the voice packs of the repository, which takes as long as the rest of its start."""
    read = voice_pack.read_voicepack
    shipped = lru_cache(read)

    def read_voicepack(folder: Path) -> voice_pack.InstalledPack:
        return shipped(folder) if folder.is_relative_to(VOICE_PACKS) else read(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voice_pack, "read_voicepack", read_voicepack)
        yield


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """Every client of httpx reads the certificate authorities, also for http: 28 ms, more than most requests take."""
    from httpx._transports import default as transports

    create = transports.create_ssl_context  # type: ignore[attr-defined]  # private

    @lru_cache
    def shared(*authorities: str | None) -> ssl.SSLContext:
        return create()

    def create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert is not None or not trust_env:
            return create(verify=verify, cert=cert, trust_env=trust_env)
        return shared(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transports, "create_ssl_context", create_ssl_context)
        yield


class _PromptSleep:
    """The module asyncio, with waits of a twentieth."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


@pytest.fixture(scope="session", autouse=True)
def servers_end_promptly() -> Iterator[None]:
    """Uvicorn looks every 0.1 s whether it should end, and then waits as long for its connections to close."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", _PromptSleep())
        yield


Serving = Callable[..., AbstractAsyncContextManager[str]]


@asynccontextmanager
async def serving(**sections: Any) -> AsyncIterator[str]:
    """Run a server on a free port of loopback; yield its ``host:port`` when it is ready.

    ``extension`` and ``on_reload``: see ``serving.serve``. All other arguments are sections of the settings.
    """
    more = {name: sections.pop(name) for name in ("extension", "on_reload") if name in sections}
    server = {"port": 0, **sections.pop("server", {})}
    ready = asyncio.Event()
    address = ""

    def on_listening(url: str) -> None:
        nonlocal address
        if url.startswith("http"):  # not the address of gRPC
            address = url.removeprefix("http://")

    settings = tone_settings(server=server, **sections)
    task = asyncio.create_task(serve(settings, on_listening, ready.set, **more))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield address
    finally:
        waiting.cancel()
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
def serve_tone() -> Serving:
    return serving
