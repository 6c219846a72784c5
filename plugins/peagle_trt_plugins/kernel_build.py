"""Compiles the Triton kernels for GPUs that need not be present, and judges what comes out."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peagle_trt_plugins.kernel_targets import DRIVER_OF_PTX, MAX_REGISTERS, Architecture
from peagle_trt_plugins.kernel_variants import KernelVariant
from peagle_trt_plugins.ptx import drop_hidden_parameters, kernel_parameters, ptx_version

_ASSEMBLE_SECONDS = 120
_FIRST_BLACKWELL = 100


class MissingToolError(Exception):
    """This machine lacks what compiling kernels needs; the message names it and `hint` the remedy."""

    def __init__(self, message: str, *, hint: str) -> None:
        self.hint = hint
        super().__init__(message)


class KernelError(Exception):
    """A kernel does not compile, or an assembler refuses what the compiler wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """What a kernel needs once compiled.

    Attributes:
        kernel: Its name.
        label: Of its variant.
        architecture: What it was compiled for.
        registers: Of a thread.
        spilled_bytes: Of a thread, written to memory for want of registers.
        shared_bytes: Shared memory of a block.
        ptx_version: Language of its PTX.
        driver_cuda: CUDA version of the oldest driver that compiles this PTX, or "unknown".
        parameters: Types of what the caller supplies, Triton's hidden pointers left out.
        cubin_bytes: Size of the machine code's file.
        problems: Why it would fail or be slow; empty when it is fit.
    """

    kernel: str
    label: str
    architecture: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    ptx_version: str
    driver_cuda: str
    parameters: tuple[str, ...]
    cubin_bytes: int
    problems: tuple[str, ...]


def compile_kernel(variant: KernelVariant, architecture: Architecture) -> CompiledKernel:
    """Compile to PTX with Triton, drop its hidden parameters, and assemble what is left, as a plugin would hold it.

    Raises:
        MissingToolError: Triton or an assembler is not installed.
        KernelError: The kernel does not compile.
    """
    assembler = find_assembler(architecture)
    plugin_ptx, shared_bytes = write_plugin_ptx(variant, architecture)
    registers, spilled_bytes, cubin_bytes = _assemble(plugin_ptx, architecture, assembler)
    version = ptx_version(plugin_ptx)
    return CompiledKernel(
        kernel=variant.kernel,
        label=variant.label,
        architecture=architecture.name,
        registers=registers,
        spilled_bytes=spilled_bytes,
        shared_bytes=shared_bytes,
        ptx_version=version,
        driver_cuda=DRIVER_OF_PTX.get(version, "unknown"),
        parameters=tuple(kind for kind, _ in kernel_parameters(plugin_ptx)),
        cubin_bytes=cubin_bytes,
        problems=tuple(_problems(variant, architecture, registers, spilled_bytes, shared_bytes, plugin_ptx)),
    )


def write_plugin_ptx(variant: KernelVariant, architecture: Architecture) -> tuple[str, int]:
    """As `write_ptx`, without the parameters that only Triton's own launcher supplies.

    Raises:
        MissingToolError: Triton is not installed, or its interpreter was chosen for this process.
        KernelError: The kernel does not compile, or needs what Triton's launcher supplies.
    """
    ptx, shared_bytes = write_ptx(variant, architecture)
    try:
        return drop_hidden_parameters(ptx), shared_bytes
    except ValueError as error:
        raise KernelError(f"{variant.kernel} ({variant.label}): {error}") from error


def write_ptx(variant: KernelVariant, architecture: Architecture) -> tuple[str, int]:
    """PTX as Triton writes it, and the shared memory in bytes that a launch must ask for.

    Raises:
        MissingToolError: Triton is not installed, or its interpreter was chosen for this process.
        KernelError: The kernel does not compile.
    """
    _require_triton()
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from peagle_trt_plugins import triton_kernels

    function = getattr(triton_kernels, variant.kernel)
    if not hasattr(function, "params"):
        raise MissingToolError("Triton's interpreter is on", hint="unset TRITON_INTERPRET, which hides the compiler")
    signature = supplied_parameters(variant, function.arg_names)
    source = ASTSource(
        fn=function,
        signature={**signature, **dict.fromkeys(variant.constants, "constexpr")},
        constexprs=variant.constants,
        # TensorRT and torch align every tensor to 256 bytes; Triton reads wide where it may count on 16.
        attrs={(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in variant.pointers},
    )
    options = {
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        "ptx_version": architecture.ptx_version,
        "enable_fp_fusion": True,
    }
    with _own_cache():
        try:
            compiled = triton.compile(source, target=GPUTarget("cuda", architecture.capability, 32), options=options)
        except (triton.CompilationError, RuntimeError) as error:
            raise KernelError(f"{variant.kernel} ({variant.label}) for {architecture.name}: {error}") from error
    scratch = compiled.metadata.global_scratch_size + compiled.metadata.profile_scratch_size
    if scratch:
        raise KernelError(f"{variant.kernel} ({variant.label}) wants {scratch} bytes of scratch memory; expected none")
    return str(compiled.asm["ptx"]), int(compiled.metadata.shared)


def supplied_parameters(variant: KernelVariant, names: list[str]) -> dict[str, str]:
    """Type of every parameter that a caller supplies, in the kernel's order: pointers, or 32-bit integers."""
    supplied = [name for name in names if name not in variant.constants]
    return {name: f"*{variant.pointers[name]}" if name in variant.pointers else "i32" for name in supplied}


def find_assembler(architecture: Architecture) -> Path:
    """A `ptxas`: Triton's own, or the one of an installed CUDA toolkit.

    Raises:
        MissingToolError: There is none.
    """
    _require_triton()
    import triton

    # Triton ships two: one old enough for old drivers, and one that knows the newest GPUs.
    name = "ptxas-blackwell" if architecture.capability >= _FIRST_BLACKWELL else "ptxas"
    own = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    if own.is_file():
        return own
    installed = shutil.which("ptxas")
    if installed is None:
        raise MissingToolError(
            "no `ptxas`: neither in Triton's package nor on the path",
            hint='install `pip install "peagle-trt[kernels]"` from a wheel, or the CUDA toolkit 12.9 or newer',
        )
    return Path(installed)


def _require_triton() -> None:
    # A folder of the same name, such as Triton Inference Server's, is no compiler.
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("triton.compiler") is None:
        raise MissingToolError(
            "no Triton compiler: the package `triton` is not installed",
            hint='install it with `pip install "peagle-trt[kernels]"` (Linux, 1 GB on disk, needs no GPU)',
        )


@contextmanager
def _own_cache() -> Iterator[None]:
    """Nothing is left in the user's home, and nothing found there is taken for compiled now."""
    import triton

    with tempfile.TemporaryDirectory(prefix="peagle-kernels-") as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        yield


def _assemble(ptx: str, architecture: Architecture, assembler: Path) -> tuple[int, int, int]:
    """Registers and spilled bytes of a thread, and the size of the machine code."""
    with tempfile.TemporaryDirectory(prefix="peagle-kernels-") as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, encoding="ascii")
        command = [str(assembler), "-v", f"-arch={architecture.name}", str(source), "-o", str(cubin)]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=_ASSEMBLE_SECONDS, check=False)
        if finished.returncode:
            raise KernelError(f"{assembler.name} for {architecture.name}: {finished.stderr.strip()[-600:]}")
        return *_read_resources(finished.stderr), cubin.stat().st_size


def _read_resources(report: str) -> tuple[int, int]:
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    if registers is None or not spills:
        raise KernelError(f"ptxas reports no resources: {report.strip()[-300:]}")
    return int(registers[1]), max(int(count) for count in spills)


def _problems(
    variant: KernelVariant,
    architecture: Architecture,
    registers: int,
    spilled_bytes: int,
    shared_bytes: int,
    ptx: str,
) -> Iterator[str]:
    if spilled_bytes:
        yield f"{spilled_bytes} bytes of a thread spill to memory"
    if registers > MAX_REGISTERS:
        yield f"{registers} registers, of {MAX_REGISTERS}"
    if shared_bytes > architecture.max_shared_bytes:
        yield f"{shared_bytes} bytes of shared memory, of {architecture.max_shared_bytes}"
    version = ptx_version(ptx)
    if version not in DRIVER_OF_PTX or _as_number(version) > architecture.ptx_version:
        yield f"PTX {version}, newer than asked for: older drivers refuse it"
    found = [kind for kind, _ in kernel_parameters(ptx)]
    expected = _expected_kinds(variant)
    if found != expected:
        yield f"parameters {found}; TensorRT supplies {expected}"


def _as_number(version: str) -> int:
    major, minor = version.split(".")
    return int(major) * 10 + int(minor)


def _expected_kinds(variant: KernelVariant) -> list[str]:
    from peagle_trt_plugins import triton_kernels

    names = getattr(triton_kernels, variant.kernel).arg_names
    return ["u64" if kind.startswith("*") else "u32" for kind in supplied_parameters(variant, names).values()]
