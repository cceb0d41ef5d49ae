"""Unmodified OpenAI SDK with a tts-worker: only the base URL differs.

pip install openai
tts-worker serve &
python examples/openai_sdk.py out.mp3 "Hello there." [http://127.0.0.1:8080/v1]
"""

from __future__ import annotations

import sys

from openai import OpenAI


def main(path: str, text: str, url: str) -> None:
    client = OpenAI(base_url=url, api_key="not-needed")  # the worker's API key, if it has one
    voices = client.get("/voices", cast_to=dict)["voices"]
    voice = next(voice["id"] for voice in voices if voice["default"])
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice=voice, input=text, response_format="mp3"
    ) as response:
        size = 0
        with open(path, "wb") as file:
            for chunk in response.iter_bytes():  # streams while the audio is generated
                size += file.write(chunk)
    print(f"{path}: {size} bytes in the voice {voice}")


if __name__ == "__main__":
    arguments = sys.argv[1:] or ["out.mp3"]
    sentence = arguments[1] if len(arguments) > 1 else "Hello there. This is OpenAI's SDK."
    main(arguments[0], sentence, arguments[2] if len(arguments) > 2 else "http://127.0.0.1:8080/v1")
