/** The page: connects, speaks, stops by click or by voice, and shows how long each took. */

import { Ear } from "/static/ear.js";
import { Gauge } from "./gauge.js";
import { Peer } from "./peer.js";

/** After a stop was acknowledged, whatever is still on its way has been heard by then. */
const SETTLED_MS = 400;

const at = (id) => document.getElementById(id);
const audio = new Audio();
let peer = null;
let gauge = null;
let askedS = null; // when speech was asked for and has not been heard
let stopping = null; // {s, ms}: when a stop was sent
let speaking = false;
let paused = false;

const ear = new Ear({
  speech: () => speaking && stop("barge-in"),
  level: () => {},
  lost: (text) => show("problem", text),
});

function show(id, text) {
  at(id).textContent = text;
}

function showMs(id, ms) {
  show(id, `${Math.round(ms)} ms`);
}

function enable(connected) {
  for (const id of ["speak", "pause", "stop", "ear"]) at(id).disabled = !connected;
  show("connect", connected ? "Disconnect" : "Connect");
}

async function connect() {
  show("problem", "");
  show("state", "Connecting");
  gauge = new Gauge((atS) => {
    if (askedS === null) return;
    showMs("first-sound", (atS - askedS) * 1000);
    askedS = null;
  });
  const own = new Peer({
    message: told,
    sound: (stream) => {
      audio.srcObject = stream; // without an element that plays it, Chromium gives a remote stream to nobody
      audio.muted = true; // the gauge is who is heard
      audio.play();
      gauge.listen(stream).catch(() => {
        if (peer === own) show("problem", "A part of this page could not be loaded, so nothing is heard: reload it.");
      });
    },
    lost: (reason) => {
      disconnect();
      show("problem", reason);
    },
  });
  peer = own;
  try {
    await own.open({}, at("key").value);
  } catch (error) {
    if (peer !== own) return;
    disconnect();
    show("problem", error.message);
  }
}

function disconnect() {
  peer?.close();
  gauge?.close();
  ear.close();
  audio.srcObject = null;
  peer = gauge = askedS = stopping = null;
  speaking = paused = false;
  at("ear").checked = false;
  enable(false);
  show("state", "Not connected");
}

function told(message) {
  if (message.type === "ready") {
    enable(true);
    show("state", `Connected, voice ${message.voice}`);
  } else if (message.type === "started") {
    speaking = true;
    gauge.mute(false);
    show("said", "");
  } else if (message.type === "words") {
    at("said").append(message.words.map((word) => `${word.text} `).join(""));
  } else if (["done", "truncated", "error", "stopped"].includes(message.type)) {
    if (message.type === "stopped") {
      gauge.mute(true);
      stopped();
    }
    speaking = false;
    if (message.type === "error") show("problem", message.message);
  } else if (message.type === "rejected") {
    show("problem", message.message);
  } else if (["paused", "resumed"].includes(message.type)) {
    paused = message.type === "paused" && message.applied;
    show("pause", paused ? "Resume" : "Pause");
  }
}

function speak() {
  if (speaking) stop("new text");
  show("problem", "");
  askedS = gauge.now;
  peer.send({ type: "text", text: at("text").value, end: true });
}

function stop(reason) {
  stopping = { s: gauge.now, ms: performance.now() };
  askedS = null;
  paused = false;
  show("pause", "Pause");
  gauge.mute(true);
  peer.send({ type: "stop", reason });
}

async function stopped() {
  if (stopping === null) return;
  const { s, ms } = stopping;
  const [own, meter] = [peer, gauge];
  stopping = null;
  const toldMs = performance.now() - ms;
  await new Promise((resolve) => setTimeout(resolve, SETTLED_MS));
  if (peer !== own || stopping !== null || speaking) return;
  const { arrivedS, heardS } = await meter.lastLoud();
  const [arrivedMs, heardMs] = [arrivedS, heardS].map((atS) => Math.max(0, (atS - s) * 1000));
  const roundTripMs = (await own.roundTripMs()) ?? 0;
  const jitterMs = (await own.jitterMs()) ?? 0;
  showMs("network", roundTripMs);
  showMs("worker", Math.max(0, toldMs - roundTripMs));
  showMs("jitter", jitterMs);
  showMs("playout", Math.max(0, arrivedMs - toldMs - jitterMs));
  showMs("device", meter.deviceMs);
  showMs("stop-arrived", arrivedMs);
  showMs("stop-told", toldMs);
  showMs("stop-heard", heardMs);
}

at("connect").onclick = () => (peer === null ? connect() : disconnect());
at("speak").onclick = speak;
at("pause").onclick = () => peer.send({ type: paused ? "resume" : "pause" });
at("stop").onclick = () => stop("stop");
at("ear").onchange = async () => {
  if (!at("ear").checked) {
    ear.close();
    return;
  }
  try {
    await ear.open();
  } catch (error) {
    at("ear").checked = false;
    show("problem", error.message);
  }
};
