/**
 * Shows the OpenAPI description and the JSON Schema of `/v1/stream`: the worker's own routes first, those for vendors'
 * clients folded. The API key is the one of the main page.
 */

import { authorization, keyStore, problemOf, UNREACHABLE } from "./api.js";
import { element } from "./elements.js";
import { tryIt } from "./try-it.js";

const OWN = "tts-worker";
const SPEECH = "/v1/audio/speech";

/** Beginnings of paths in the order in which the worker's own routes are shown (the last that fits); others follow. */
const ORDER = [
  "/v1/stream",
  SPEECH,
  "/v1/audio/conversions",
  "/v1/voices",
  "/v1/audio/voices",
  "/v1/lexicons",
  "/v1/batch",
  "/v1/models",
  "/v1/tokens",
  "/v1/usage",
  "/webrtc",
  "/v1/calls",
  "/twilio",
  "/telnyx",
  "/v1/agent",
  "/v1/stream/schema.json",
  "/health",
  "/metrics",
];

async function fetchJson(path) {
  let response;
  try {
    response = await fetch(path, { headers: authorization(), cache: "no-store" });
  } catch {
    throw new Error(UNREACHABLE.text);
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) {
    document.querySelector("#key-form").hidden = response.status !== 401;
    throw new Error(problemOf(response.status, body).text);
  }
  return body;
}

/** The nodes of a text in which names stand between double backticks. */
function prose(text) {
  return text.split(/``([^`]+)``/).map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

/** A line that opens to `content`; its address is `#method-path`. */
function route(method, path, text, ...content) {
  return element(
    "details",
    { className: "route", id: `${method.toLowerCase()}-${path}` },
    element(
      "summary",
      {},
      element("span", { className: "method", dataset: { method } }, method),
      " ",
      element("code", { className: "path" }, path),
      " ",
      element("span", { className: "what" }, ...prose(text)),
    ),
    ...content,
  );
}

/** Every operation and WebSocket as `{tag, path, shown}`, in the order of the document. */
function operations(openapi) {
  const found = [];
  for (const [path, { summary, tags }] of Object.entries(openapi["x-websockets"])) {
    const link = path === "/v1/stream" ? [element("p", { className: "hint" }, "Its messages are below.")] : [];
    found.push({ tag: tags[0], path, shown: route("WS", path, summary, ...link) });
  }
  for (const [path, methods] of Object.entries(openapi.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const verb = method.toUpperCase();
      const shown = route(verb, path, operation.summary ?? "", tryIt(verb, path, operation, openapi));
      found.push({ tag: path === SPEECH ? OWN : operation.tags[0], path, shown });
    }
  }
  return found;
}

function place({ path }) {
  const at = ORDER.findLastIndex((beginning) => path === beginning || path.startsWith(`${beginning}/`));
  return at < 0 ? ORDER.length : at;
}

function showRoutes(openapi) {
  const found = operations(openapi);
  const own = found.filter(({ tag }) => tag === OWN).sort((a, b) => place(a) - place(b));
  const cards = [element("section", { className: "card" }, element("h2", {}, OWN), ...own.map(({ shown }) => shown))];
  for (const { name } of openapi.tags.filter((tag) => tag.name !== OWN)) {
    const routes = found.filter(({ tag }) => tag === name).map(({ shown }) => shown);
    const title = element("h2", {}, `For clients of ${name} (${routes.length})`);
    cards.push(element("details", { className: "card" }, element("summary", {}, title), ...routes));
  }
  document.querySelector("#routes").replaceChildren(...cards);
}

function showMessages(schema) {
  const shown = [];
  for (const [union, direction] of [["ClientMessage", "to the worker"], ["WorkerMessage", "from the worker"]]) {
    for (const { $ref } of schema.$defs[union].anyOf) {
      const message = schema.$defs[$ref.split("/").at(-1)];
      const name = message.properties.type.enum[0];
      const text = `${direction}: ${message.description?.split("\n")[0] ?? ""}`;
      shown.push(
        element(
          "details",
          { className: "route" },
          element(
            "summary",
            {},
            element("code", { className: "path" }, name),
            " ",
            element("span", { className: "what" }, ...prose(text)),
          ),
          element("pre", { tabIndex: 0 }, JSON.stringify(message.properties, null, 2)),
        ),
      );
    }
  }
  document.querySelector("#messages").append(...shown);
}

/** Opens the route that the address names, and the card around it. */
function openAddressed() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at instanceof HTMLDetailsElement) at.open = true;
  target?.scrollIntoView();
}

/** An opened route is the address of the page, to be shared. */
function addressOpened({ target }) {
  if (target.open && target.id) history.replaceState(null, "", `#${target.id}`);
}

async function show() {
  const problem = document.querySelector("#problem");
  try {
    showRoutes(await fetchJson("/openapi.json"));
    showMessages(await fetchJson("/v1/stream/schema.json"));
    problem.textContent = "";
    openAddressed();
    document.querySelector("#routes").addEventListener("toggle", addressOpened, true);
  } catch (error) {
    problem.textContent = error.message;
  }
}

document.querySelector("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keyStore.key = document.querySelector("#key").value.trim();
  show();
});
window.addEventListener("hashchange", openAddressed);
await show();
