"""The documentation site as files: its script runs the worker of the search in a frame."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

SCRIPT = Path(__file__).parents[2] / "docs" / "assets" / "iframe-worker.js"
PAGE = """<!doctype html><title>search</title><p id="found"></p><script src="iframe-worker.js"></script><script>
const worker = new Worker("worker.js");
worker.addEventListener("message", ({ data }) => document.querySelector("#found").append(data.answer + " "));
worker.addEventListener("error", () => document.querySelector("#found").append("error "));
worker.postMessage({ query: "early" });
setTimeout(() => worker.postMessage({ query: "late" }), 300);
</script>"""
WORKER = 'self.addEventListener("message", ({ data }) => postMessage({ answer: data.query.toUpperCase() }));'


async def test_worker_answers_in_a_page_of_a_file(browser: Browser, tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "worker.js").write_text(WORKER)
    async with await browser.new_context() as context:
        page = await context.new_page()
        await page.goto((tmp_path / "index.html").as_uri())
        await expect(page.locator("#found")).to_have_text("EARLY LATE")


async def test_missing_worker_is_an_error(browser: Browser, tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "index.html").write_text(PAGE)
    async with await browser.new_context() as context:
        page = await context.new_page()
        await page.goto((tmp_path / "index.html").as_uri())
        await expect(page.locator("#found")).to_have_text("error")
