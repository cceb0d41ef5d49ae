"""Adds the APIs of OpenAI, ElevenLabs, Cartesia, CosyVoice, Deepgram, vLLM-Omni and jambonz to the server."""

from __future__ import annotations

from functools import partial

from tts_worker.errors import TTSWorkerError
from tts_worker.features.compat import (
    browser_tokens,
    cartesia,
    cartesia_dictionaries,
    cartesia_wire,
    cloning,
    cosyvoice,
    deepgram,
    deepgram_flux,
    dictionaries,
    elevenlabs,
    elevenlabs_wire,
    jambonz,
    openai,
    vllm_omni,
)
from tts_worker.server import models, voices
from tts_worker.server.application import Application
from tts_worker.server.security import BodyTooLarge
from tts_worker.server.vendor_apis import VendorApi


def add_apis(app: Application) -> None:
    """Add the routes, and what the server must know of them and of their clients."""
    hub, limits, rules = app.hub, app.limits, app.paths
    app.apis.add(
        VendorApi(
            "elevenlabs",
            frozenset(
                {
                    f"{elevenlabs.PREFIX}/",
                    "/v1/text-to-speech/",
                    *elevenlabs.CONVERSION_PATHS,
                    browser_tokens.ELEVENLABS_PATH,
                    "/v2/voices",
                    "/v2/voices/",
                    "/v1/voices/add",
                    dictionaries.PATH,
                    f"{dictionaries.PATH}/",
                }
            ),
            elevenlabs_wire.error_response,
            shared={
                voices.PATH: partial(elevenlabs.voices_response, hub),
                voices.NAMED_PATH: partial(elevenlabs.voice_response, hub),
                models.PATH: partial(elevenlabs.models_response, hub, limits),
            },
            header="xi-api-key",
            sdk="elevenlabs",
        )
    )
    app.apis.add(
        VendorApi(
            "cartesia",
            frozenset(
                {
                    *("/tts/", "/voices", "/voices/", browser_tokens.CARTESIA_PATH),
                    *(cartesia_dictionaries.PATH, f"{cartesia_dictionaries.PATH}/"),
                }
            ),
            cartesia_wire.error_response,
            header="cartesia-version",
        )
    )
    app.apis.add(VendorApi("cosyvoice", cosyvoice.PATHS))
    app.apis.add(VendorApi("deepgram", frozenset(deepgram.PATHS), deepgram.error_response, deepgram.error_status))
    app.apis.add(VendorApi("jambonz", frozenset({jambonz.PATH}), jambonz.error_response))
    app.apis.add(VendorApi("openai", frozenset({"/v1/audio/"}), status=_openai_status))
    app.model_names.extend(openai.OPENAI_MODELS)
    rules.uploads |= {*cosyvoice.PATHS, *elevenlabs.UPLOAD_PATHS, *cloning.PATHS}
    rules.key_headers += ["xi-api-key", "api-key"]  # that of ElevenLabs, and of OpenAI's clients for Azure
    rules.key_schemes.append("token")  # of Deepgram
    rules.key_parameters |= {"/tts/", "/v1/text-to-speech/", f"{elevenlabs.PREFIX}/v1/text-to-speech/"}
    app.routes.include(openai.router(hub, limits))
    for api in (elevenlabs, cartesia, cosyvoice, deepgram, deepgram_flux, jambonz, vllm_omni):
        app.routes.include(api.router(hub, limits))
    signer = app.keys.tokens
    for routes in (
        browser_tokens.elevenlabs_router(signer),
        browser_tokens.elevenlabs_router(signer, elevenlabs.PREFIX),
        browser_tokens.cartesia_router(signer),
    ):
        app.routes.include(routes)


def _openai_status(path: str, error: TTSWorkerError) -> int | None:
    is_bad = error.code in openai.BAD_REQUEST and not isinstance(error, BodyTooLarge)
    return 400 if is_bad and path == openai.SPEECH_PATH else None
