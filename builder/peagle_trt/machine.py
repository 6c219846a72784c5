"""What this machine has: processors, memory, GPUs, libraries and servers; probed once a process."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# The packages a user's question is usually about.
PACKAGES = (
    "click", "gguf", "jinja2", "ml_dtypes", "msgspec", "numpy", "onnx", "onnxruntime", "tokenizers", "torch", "triton",
    "transformers", "safetensors", "tritonclient", "nvidia-pytriton", "tensorrt", "tensorrt-rtx-cu13", "tensorrt-llm",
    "vllm", "tensorrt-cu13", "cuda-bindings",
)  # fmt: skip
_PROBE_SECONDS = 10
# Name, compute capability, memory (`[N/A]` where it is the system's), driver; drivers write their complaints there too.
_GPU_LINE = re.compile(r"[^,]+, *\d+\.\d+ *,[^,]+,[^,]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        name: As the driver calls it.
        compute_capability: Such as 10.0 for a B200.
        memory_bytes: All of its memory.
        driver: Version of the driver.
    """

    name: str
    compute_capability: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine.

    Attributes:
        system: Operating system and architecture.
        processor: Name of the processor.
        num_usable_cores: Cores this process may use.
        memory_bytes: Memory, or what a container's limit leaves of it.
        python: Version of Python.
        packages: Version of every package of `PACKAGES` that is installed.
        gpus: GPUs the NVIDIA driver shows.
        driver_cuda_version: CUDA version that the driver is made for, as 13010 for 13.1; None where nothing tells.
        triton_server: Path of a `tritonserver`, or None.
    """

    system: str
    processor: str
    num_usable_cores: int
    memory_bytes: int
    python: str
    packages: dict[str, str]
    gpus: tuple[Gpu, ...]
    triton_server: Path | None
    driver_cuda_version: int | None = None


@functools.cache
def probe_machine() -> Machine:
    """Look around, once a process."""
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor_name(),
        num_usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        python=platform.python_version(),
        packages=_package_versions(),
        gpus=_find_gpus(),
        triton_server=find_triton_server(),
        driver_cuda_version=_driver_cuda_version(),
    )


def find_triton_server() -> Path | None:
    """A `tritonserver`: on the path, where NVIDIA's container keeps it, or inside nvidia-pytriton."""
    found = shutil.which("tritonserver")
    candidates = [Path(found)] if found else []
    candidates.append(Path("/opt/tritonserver/bin/tritonserver"))
    spec = importlib.util.find_spec("pytriton")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        candidates += sorted(Path(folder).glob("tritonserver*/bin/tritonserver"))
    return next((path for path in candidates if path.is_file()), None)


def _driver_cuda_version() -> int | None:
    """Asked of the driver through NVIDIA's own bindings, which the TensorRT backends need anyway."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return None
    status, version = runtime.cudaDriverGetVersion()
    return int(version) if int(status) == 0 and version else None


def _package_versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _find_gpus() -> tuple[Gpu, ...]:
    if shutil.which("nvidia-smi") is None:
        return ()
    query = "--query-gpu=name,compute_cap,memory.total,driver_version"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(_parse_gpu(line) for line in finished.stdout.splitlines() if _GPU_LINE.fullmatch(line))


def _parse_gpu(line: str) -> Gpu:
    name, capability, memory, driver = (part.strip() for part in line.split(","))
    megabytes = int(memory) if memory.isdigit() else 0
    return Gpu(name=name, compute_capability=capability, memory_bytes=megabytes << 20, driver=driver)


def find_problems(machine: Machine) -> tuple[str, ...]:
    """What will get in the way, one line each."""
    problems: list[str] = []
    numpy_version = machine.packages.get("numpy", "0")
    is_embedded_server = machine.triton_server is not None and "pytriton" in str(machine.triton_server)
    if is_embedded_server and int(numpy_version.partition(".")[0]) >= 2:
        problems.append(
            f"numpy {numpy_version}: the server inside nvidia-pytriton hands empty tensors to models that run numpy 2; "
            "install `numpy<2`"
        )
    if machine.triton_server is None:
        problems.append("no tritonserver: install `peagle-trt[serve]`, or use NVIDIA's container; `serve` needs one")
    if not machine.gpus:
        problems.append(
            "no NVIDIA GPU: only the CPU backend `onnxruntime` can run here; `tensorrt-rtx` compiles for others"
        )
    return tuple(problems)
