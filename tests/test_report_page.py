"""The report's page in a browser: headless Chromium, from Debian's package `chromium`; skipped where there is none.

A page that frames the report measures it, since Chromium's window has a smallest width of 500 pixels: the frame is as
wide as a phone or a laptop, and says how wide the report's content is.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from synthetic import cells, write_run

from analysis import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium to test the page")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic", "--enable-logging=stderr", "--v=0",
    "--allow-file-access-from-files", "--hide-scrollbars", "--window-size=1600,1200",
)  # fmt: skip
WIDTHS = (390, 1280)  # pixels: a phone, a laptop
HOSTILE = "<script>document.title='broken'</script><img src=x onerror=console.error(1)>"
FRAMES = """<!doctype html><meta charset="utf-8"><pre id="measured"></pre>
{frames}
<script>
addEventListener("load", () => {{
  const measured = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument, root = page.documentElement;
    return {{
      width: root.clientWidth, content: root.scrollWidth, scripts: page.scripts.length, title: page.title,
      images: [...page.images].every((image) => image.complete && image.naturalWidth > 0),
    }};
  }});
  document.getElementById("measured").textContent = JSON.stringify(measured);
}});
</script>
"""


def browse(page: Path, profile: Path) -> tuple[list[dict], str]:
    """(what each width's frame measured, the browser's console)."""
    frames = "\n".join(
        f'<iframe src="{page.as_uri()}" width="{width}" height="1000" frameborder="0"></iframe>' for width in WIDTHS
    )
    harness = profile.with_name("frames.html")
    harness.write_text(FRAMES.format(frames=frames), encoding="utf-8")
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={profile}", "--dump-dom", harness.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    measured = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.S)
    assert measured, done.stdout[:500] + done.stderr[-2000:]
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return json.loads(measured[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")), console


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Four systems on one game, one algorithm with a name that is HTML; a reason in a log is so too."""
    results = tmp_path_factory.mktemp("page") / "results"
    small = {
        "total_env_steps": 40_000,
        "num_episodes": 200,
        "settings": {"num_envs": 64, "fingerprint_every_updates": 1},
    }
    made = cells(("Breakout-v5",), (1, 2), 4, **small)
    for cell in made:
        folder = write_run(results, cell)
        if cell.algorithm == "ppo":
            rename(folder, HOSTILE)
    write_run(results, cells(("Breakout-v5",), (3,), 1, **small)[0], state="failed", reason=HOSTILE)
    return report.main(["synthetic"], results)


def rename(folder: Path, name: str) -> None:
    """The record's algorithm gets this name."""
    path = folder / "spec.json"
    spec = json.loads(path.read_text())
    spec["algorithm"] = name
    path.write_text(json.dumps(spec))


@needs_browser
def test_the_page_opens_without_errors_and_fits(page, tmp_path):
    measured, console = browse(page, tmp_path / "profile")
    assert console == ""
    assert [frame["width"] for frame in measured] == list(WIDTHS)
    assert [frame["content"] for frame in measured] == list(WIDTHS)  # no horizontal scroll
    assert [frame["scripts"] for frame in measured] == [0, 0]  # names are text
    assert {frame["title"] for frame in measured} == {"synthetic: report"}
    assert all(frame["images"] for frame in measured)


@needs_browser
def test_the_browser_would_notice(tmp_path):
    """A page with an error on its console, a script, and a table that is wider than a phone."""
    broken = tmp_path / "broken.html"
    wide = '<div style="width: 800px">wide</div>'
    broken.write_text(f"<!doctype html><title>x</title>{wide}<script>console.error('seen')</script>")
    measured, console = browse(broken, tmp_path / "profile")
    assert "seen" in console
    assert (measured[0]["content"], measured[1]["content"]) == (800 + 8, 1280)  # with the body's margin
    assert measured[0]["scripts"] == 1


def test_names_of_logs_are_text_on_the_page(page):
    html = page.read_text()
    assert "<script>document" not in html
    assert html.count("&lt;script&gt;document.title=") >= 2  # a system's name, and a reason
