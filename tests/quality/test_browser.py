"""Speech that a browser received over WebRTC."""

from __future__ import annotations

import pytest
from playwright.async_api import async_playwright

from tests.browser.conftest import ABSENT, launch
from tests.browser.test_webrtc import WEBRTC_FLAGS, open_webrtc_demo
from tests.conftest import serving
from tests.quality.judge import Judge

pytestmark = [
    pytest.mark.quality,
    pytest.mark.browser,
    pytest.mark.long,  # tests/browser/test_webrtc.py hears the pitch of its text
    pytest.mark.skipif(ABSENT, reason="needs Debian's chromium: apt install chromium-headless-shell"),
]


async def test_recognizer_reads_the_received_track(judge: Judge) -> None:
    text = "The quick brown fox jumps over the lazy dog."
    async with (
        async_playwright() as playwright,
        launch(playwright, *WEBRTC_FLAGS) as browser,
        serving(engines={"hibari": {"kind": "hibari"}}) as address,
        open_webrtc_demo(browser, address) as demo,
    ):
        await demo.connected()
        await demo.speak(text)
        await demo.audible()
        await demo.finished()
        samples = await demo.recorded()
    heard = judge.transcribe(samples.tobytes())
    assert judge.wer([text], [heard]) <= 0.12, heard
