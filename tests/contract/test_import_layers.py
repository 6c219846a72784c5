"""Who may import whom, and that importing does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "peagle_trt": ROOT / "builder" / "peagle_trt",
    "peagle_trt_plugins": ROOT / "plugins" / "peagle_trt_plugins",
    "peagle_trt_repo": ROOT / "triton_repo" / "peagle_trt_repo",
}
HEAVY = (
    "torch",
    "onnx",
    "onnxruntime",
    "transformers",
    "tensorrt",
    "tensorrt_rtx",
    "cuda",
    "triton",
    "tritonclient",
    "tokenizers",
    "gguf",
    "huggingface_hub",
    "modelopt",
    "starlette",
    "uvicorn",
    "openai_harmony",
    "tensorrt_llm",
    "llguidance",
)

# Room -> rooms it may import, besides itself, `spec`, `errors` and `files`.
ROOMS = {
    "spec": set[str](),
    "readers": set[str](),
    "writers": {"readers", "quant"},
    "quant": {"readers"},
    "graph": {"quant", "readers"},
    "engine": {"quant", "graph", "machine", "bundle"},
    "decode": {"engine", "build_folder"},
    "catalog": set[str](),
    "roofline": set[str](),
    "diagnose": {"readers", "quant", "graph", "engine", "decode"},
    "tuning": {"roofline", "decode", "engine", "build_folder"},
    "metrics": set[str](),
    "openai_door": {"decode", "deploy", "build_folder", "metrics"},
    "bundle": {"readers", "writers", "quant", "trtllm", "deploy"},
    "trtllm": {"readers", "graph", "machine"},
    "verify": {"readers", "quant", "engine", "build_folder", "machine"},
}
# A torch module is a class of torch's, so its file needs torch; only functions of `train` import these files.
DEFINE_TORCH_MODULES = {"train/head.py", "train/loss.py"}
# A kernel is compiled from its source, so its file needs Triton; only functions of the package import it.
DEFINE_KERNELS = {"triton_kernels.py"}
# What runs inside TensorRT-LLM's worker processes, whose classes are torch's and TensorRT-LLM's.
RUN_IN_WORKERS = ("trtllm/runtime/", "trtllm/adapters/")


def sources(package: str) -> list[Path]:
    return sorted(PACKAGES[package].rglob("*.py"))


def all_imports(path: Path) -> set[str]:
    """Every module a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imports_at_import(path: Path) -> set[str]:
    """Modules that importing a file imports: those of its top level, type checking aside."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("package", ["peagle_trt_plugins", "peagle_trt_repo"])
def test_the_builder_is_never_imported_back(package: str) -> None:
    offenders = [
        str(path)
        for path in sources(package)
        if "models" not in path.parts and any(name.split(".")[0] == "peagle_trt" for name in all_imports(path))
    ]
    assert offenders == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    allowed = ROOMS[room] | {room, "spec", "errors", "files"} if room != "spec" else {"spec", "errors"}
    offenders = {
        f"{path.name}: {name}"
        for path in sorted((PACKAGES["peagle_trt"] / room).rglob("*.py"))
        for name in all_imports(path)
        if name.startswith("peagle_trt.") and name.split(".")[1] not in allowed and name.split(".")[1] != "__version__"
    }
    assert offenders == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_heavy_libraries_are_imported_where_they_are_used(package: str) -> None:
    offenders = {
        f"{path.relative_to(PACKAGES[package])}: {name}"
        for path in sources(package)
        for name in imports_at_import(path)
        if name.split(".")[0] in HEAVY
        and path.relative_to(PACKAGES[package]).as_posix() not in DEFINE_TORCH_MODULES | DEFINE_KERNELS
        and not path.relative_to(PACKAGES[package]).as_posix().startswith(RUN_IN_WORKERS)
    }
    assert offenders == set()


def modules_after(statement: str) -> set[str]:
    command = [sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_help_needs_no_library_but_click() -> None:
    loaded = modules_after("import peagle_trt.cli.boundary")
    assert loaded.isdisjoint({*HEAVY, "numpy", "msgspec"})
    assert {name for name in loaded if name.startswith("peagle_trt.")} <= {
        "peagle_trt.cli",
        "peagle_trt.cli.boundary",
        "peagle_trt.cli.global_options",
        "peagle_trt.cli.group",
        "peagle_trt.cli.output",
        "peagle_trt.cli.registry",
        "peagle_trt.cli.signals",
        "peagle_trt.cli.streams",
        "peagle_trt.errors",
        "peagle_trt.files",
    }


def test_signals_are_in_order_before_anything_slow_is_imported() -> None:
    assert "click" not in modules_after("import peagle_trt.cli.main")


def test_the_pipeline_loads_no_heavy_library_until_it_runs() -> None:
    assert modules_after("import peagle_trt.pipeline").isdisjoint(HEAVY)


def test_only_the_output_module_prints() -> None:
    offenders = [
        str(path)
        for path in sources("peagle_trt")
        if path.name != "output.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert offenders == []
