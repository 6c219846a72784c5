"""Opens what lies beside a model.py: the whole build for the engine, its text side for the ensemble's two ends."""

from __future__ import annotations

from collections.abc import Mapping

from peagle_trt.decode.text import TextTokenizer
from peagle_trt.deploy.build_files import open_build_tokenizer
from peagle_trt.deploy.hosting.engine_host import EngineHost
from peagle_trt.deploy.hosting.registered import RegisteredFamilies
from peagle_trt.deploy.hosting.request_log import write_log
from peagle_trt.deploy.hosting.serving_metrics import LoopReading, ServingMetrics
from peagle_trt.deploy.hosting.settings import BUILD_FOLDER, engine_build_path, read_settings, version_path


def open_engine_host(args: Mapping[str, str]) -> EngineHost:
    """The host of the `peagle` model.

    Args:
        args: What Triton hands to `initialize`.
    """
    from peagle_trt.decode.driver import EngineThread
    from peagle_trt.decode.loop import DecodeLoop
    from peagle_trt.decode.session import open_build

    settings = read_settings(args)
    write_log(logs_requests=settings.log_requests)
    loaded = open_build(engine_build_path(args), num_threads=settings.num_threads or None)
    # Where no request gets K = 0 unasked, plain steps are the exception, and not worth another copy of the weights.
    is_ever_plain = settings.default_draft_tokens == "auto" or loaded.manifest.shapes.least_default_drafts == 0
    loaded.engine.preload(plain_steps=is_ever_plain)
    loop = DecodeLoop(loaded.engine, loaded.tokenizer, reuses_prefixes=settings.reuse_prefixes)
    driver = EngineThread(loop)
    registered = RegisteredFamilies(args["model_name"], args["model_version"])
    counters = ServingMetrics(lambda: LoopReading(loop.statistics, driver.load), registered)
    return EngineHost(driver, loaded.manifest, loaded.tokenizer, settings=settings, counters=counters)


def open_tokenizer(args: Mapping[str, str]) -> TextTokenizer:
    """The tokenizer of the `preprocessing` and `postprocessing` models.

    Args:
        args: What Triton hands to `initialize`.
    """
    return open_build_tokenizer(version_path(args) / BUILD_FOLDER)
