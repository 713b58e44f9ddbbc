"""The built documentation in a browser: links resolve, nothing is cut off, text is legible.

The tests need Sphinx, or `EVERSTEP_DOCS_HTML` (the folder of built pages); those of
widths and colours need Chromium and Playwright.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

REPOSITORY = Path(__file__).parent.parent
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

pytestmark = pytest.mark.long

#: Widths in CSS pixels: a small laptop and a phone.
WIDTHS = (1280, 390)

#: What a reader of this width cannot see, as sentences.
CUT = """() => {
  const found = [], root = document.documentElement, article = document.querySelector("article");
  if (root.scrollWidth > root.clientWidth + 1)
    found.push(`the page is ${root.scrollWidth} wide in a window of ${root.clientWidth}`);
  const right = article.getBoundingClientRect().right;
  for (const box of article.querySelectorAll("table, pre")) {
    const text = box.innerText.slice(0, 50).replace(/\\s+/g, " ");
    const room = box.parentElement.clientWidth + 1;
    if (box.offsetWidth > room || box.scrollWidth > box.clientWidth + 1)
      found.push(`${box.tagName} is cut: ${text}`);
  }
  for (const image of document.querySelectorAll("img")) {
    if (!image.complete || !image.naturalWidth) found.push(`no image: ${image.src}`);
    if (image.getBoundingClientRect().right > right + 1) found.push(`image is cut: ${image.src}`);
  }
  return found;
}"""

#: Contrasts of text and background below 4.5 (WCAG 2.1, 1.4.3).
FAINT = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((v) => {
      v /= 255;
      return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  const texts = "article :is(p, td, th, li, a, code, h1, h2, h3)";
  for (const element of document.querySelectorAll(texts)) {
    if (!element.innerText.trim()) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.add(`${element.tagName}: contrast ${contrast.toFixed(1)}`);
  }
  return [...found];
}"""


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built documentation."""
    if built := os.environ.get("EVERSTEP_DOCS_HTML"):
        return Path(built).absolute()
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("the documentation is built by Sphinx, which is not installed")
    out = tmp_path_factory.mktemp("html")
    build = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "docs", str(out)]
    subprocess.run(build, cwd=REPOSITORY, check=True)
    return out


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    if importlib.util.find_spec("playwright") is None or BROWSER is None:
        pytest.skip("pages are looked at with Chromium and Playwright, which are not installed")
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        except Error as error:
            pytest.skip(f"{BROWSER} does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


def pages(html: Path) -> list[Path]:
    """All pages but those of source code, which Sphinx makes."""
    return sorted(page for page in html.rglob("*.html") if "_modules" not in page.parts)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off(html: Path, chromium: Any, width: int) -> None:
    window = chromium.new_page(viewport={"width": width, "height": 900})
    found = []
    for page in pages(html):
        window.goto(page.as_uri())
        found += [f"{page.relative_to(html)}: {what}" for what in window.evaluate(CUT)]
    window.close()
    assert found == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_legible(html: Path, chromium: Any, theme: str) -> None:
    window = chromium.new_page()
    found = []
    for page in pages(html):
        window.goto(page.as_uri())
        window.evaluate("theme => { document.body.dataset.theme = theme; }", theme)
        found += [f"{page.relative_to(html)}: {what}" for what in window.evaluate(FAINT)]
    window.close()
    assert found == []


def test_a_table_that_is_cut_is_found(html: Path, chromium: Any, tmp_path: Path) -> None:
    window = chromium.new_page(viewport={"width": 390, "height": 900})
    path = tmp_path / "wide.html"
    path.write_text(
        "<article style='width: 300px; overflow: auto; color: #999; background: #fff'><p>faint</p>"
        "<div><table><tr><td style='min-width: 500px'>verdict</table></div>"
        "<img src='none.png'></article>"
    )
    window.goto(path.as_uri())
    assert [line.split(":")[0] for line in window.evaluate(CUT)] == ["TABLE is cut", "no image"]
    assert window.evaluate(FAINT) == ["P: contrast 2.8"]
    window.close()


def test_links_resolve(html: Path) -> None:
    assert [broken for page in pages(html) for broken in broken_links(page)] == []


def broken_links(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there."""
    broken = []
    for link in _read(page).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.is_file():
            broken.append(f"{page.name}: {link}: no such file")
            continue
        if target.suffix == ".html" and unquote(parts.fragment) not in _read(target).anchors:
            broken.append(f"{page.name}: {link}: no such heading")
    return broken


class _Links(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if (tag, name) in (("a", "href"), ("img", "src")) and value:
                self.links.append(value)


@cache
def _read(page: Path) -> _Links:
    parser = _Links()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text("<h1 id='there'>")
    page = tmp_path / "page.html"
    page.write_text(
        "<a href='other.html#there'>a</a><a href='other.html#gone'>b</a><a href='none.html'>c</a>"
        "<a href='#'>d</a><a href='https://example.org/x'>e</a><img src='none.png'>"
    )
    assert broken_links(page) == [
        "page.html: other.html#gone: no such heading",
        "page.html: none.html: no such file",
        "page.html: none.png: no such file",
    ]
