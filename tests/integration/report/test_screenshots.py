"""The page in a real browser: nothing runs over the edge of a phone, and dark is dark."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from peagle_trt.bench.report.page import write_page
from peagle_trt.bench.report.runs import read_runs

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
BROWSER = next((name for name in BROWSERS if shutil.which(name)), None)
WIDTHS = """<script>
const wide = [...document.querySelectorAll("main *")].filter(
  each => !each.closest(".scroll") && each.getBoundingClientRect().right > innerWidth + 1);
document.title = JSON.stringify({inner: innerWidth, scroll: document.documentElement.scrollWidth,
  wide: wide.map(each => each.tagName + "." + each.className),
  letters: Math.min(...[...document.querySelectorAll("svg text")].map(each => each.getBoundingClientRect().height))});
</script>"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium"),
]


def browse(page: Path, *words: str, width: int = 400) -> str:
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", *words]
    finished = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return finished.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = [
        {
            "method": "p-eagle" if k else "none",
            "draft_tokens": k,
            "concurrency": count,
            "prompts": "a-set-of-prompts-with-quite-a-long-name",
            "tokens_per_second": 1234.5 * count,
            "tokens_per_second_per_user": 1234.5,
            "acceptance_by_position": [0.9**index for index in range(k)],
            **({"speedup": 1.5, "speedup_interval": [1.3, 1.7]} if k else {}),
        }
        for count in (1, 2, 4, 8, 16, 32, 64)
        for k in (0, 1, 3, 5, 7)
    ]
    folder = tmp_path_factory.mktemp("page")
    (folder / "run.json").write_text(json.dumps({"results": results, "settings": {"build": "x" * 200}}))
    path = folder / "page.html"
    path.write_text(write_page(read_runs([folder / "run.json", folder / "run.json"])), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [400, 1280])
def test_a_page_fits_its_window(page: Path, width: int) -> None:
    measuring = page.with_name("measuring.html")
    # The page itself forbids scripts; the copy that is measured allows this one.
    text = page.read_text(encoding="utf-8").replace("default-src 'none';", "script-src 'unsafe-inline';")
    measuring.write_text(text.replace("</body>", f"{WIDTHS}</body>"), encoding="utf-8")
    title = browse(measuring, "--dump-dom", width=width).partition("<title>")[2].partition("</title>")[0]
    found = json.loads(title.replace("&quot;", '"'))
    assert found["wide"] == []
    assert found["scroll"] <= found["inner"]
    # Letters of 11 units take 12 to 14 pixels of height, unless the chart was shrunk.
    assert found["letters"] >= 10


@pytest.mark.parametrize(("scheme", "is_dark"), [("0", True), ("1", False)])
def test_a_page_follows_the_readers_scheme(page: Path, tmp_path: Path, scheme: str, is_dark: bool) -> None:
    picture = tmp_path / "page.png"
    browse(page, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}")
    red, green, blue = first_pixel(picture)
    assert (max(red, green, blue) < 60) is is_dark
    assert (min(red, green, blue) > 200) is not is_dark


def first_pixel(path: Path) -> tuple[int, int, int]:
    """Colour of the upper left corner of a PNG file of 8 bits a channel."""
    content = path.read_bytes()
    assert content[24] == 8 and content[25] in (2, 6)
    packed, at = b"", 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        if content[at + 4 : at + 8] == b"IDAT":
            packed += content[at + 8 : at + 8 + length]
        at += 12 + length
    # The first pixel of the first row is stored as it is, whatever the filter.
    row = zlib.decompress(packed)
    return row[1], row[2], row[3]
