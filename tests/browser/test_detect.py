"""The page at /detect: a recording is examined, and the key asked for where the worker needs one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Browser, expect

from tests.browser.test_page_accessibility import AXE, VIOLATIONS, WCAG_AA
from tests.conftest import serving
from tts_worker.audio.encoders import wav_file

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]
KEY = "a-key-of-some-length"


async def test_recording_is_examined_once_the_key_is_known(browser: Browser, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 3000, 48_000).astype("<i2")
    (tmp_path / "noise.wav").write_bytes(wav_file(noise.tobytes()))
    (tmp_path / "text.wav").write_bytes(b"text")
    async with (
        serving(server={"api_keys": [KEY]}) as address,
        await browser.new_context(viewport={"width": 320, "height": 640}) as context,
    ):
        page = await context.new_page()
        await page.add_init_script(AXE)
        await page.goto(f"http://{address}/detect")
        await page.get_by_label("Choose a recording").set_input_files(tmp_path / "noise.wav")
        await expect(page.get_by_role("alert")).to_have_text("This server needs an API key.")
        await page.get_by_label("API key").fill(KEY)
        await page.get_by_role("button", name="Continue").click()
        await expect(page.get_by_role("status")).to_contain_text("No watermark found")
        await expect(page.locator("#key-form")).to_be_hidden()
        assert KEY not in str(await context.storage_state()), "the page keeps a token, not the key"
        assert await page.evaluate(VIOLATIONS, WCAG_AA) == []
        await page.get_by_label("Choose a recording").set_input_files(tmp_path / "text.wav")
        await expect(page.get_by_role("alert")).to_contain_text("refused")
        await expect(page.get_by_role("status")).to_be_empty()
