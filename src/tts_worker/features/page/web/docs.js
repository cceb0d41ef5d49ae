/**
 * Shows the OpenAPI description and the JSON Schema of `/v1/stream`. The token is the one of the main page.
 */

import { authorization } from "./access.js";
import { problemOf, UNREACHABLE } from "./api.js";

/** An element with text or children. */
function element(name, ...children) {
  const created = document.createElement(name);
  created.append(...children);
  return created;
}

async function fetchJson(path) {
  let response;
  try {
    response = await fetch(path, { headers: authorization(), cache: "no-store" });
  } catch {
    throw new Error(UNREACHABLE.text);
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Error(problemOf(response.status, body).text);
  return body;
}

/** The nodes of a text in which names stand between double backticks. */
function prose(text) {
  return text.split(/``([^`]+)``/).map((part, index) => (index % 2 ? element("code", part) : part));
}

/** A heading that opens to a description and a JSON document. */
function entry(title, text, document_) {
  const json = element("pre", element("code", JSON.stringify(document_, null, 2)));
  return element("details", element("summary", element("code", title), " ", ...prose(text)), json);
}

/** A card with a heading. */
function card(title) {
  const created = element("section", element("h2", title));
  created.className = "card";
  return created;
}

/** Shows the routes in a card for each API. */
function showRoutes(openapi) {
  const schemas = openapi.components?.schemas ?? {};
  const cards = Object.fromEntries(openapi.tags.map(({ name }) => [name, card(name)]));
  document.querySelector("#routes").append(...Object.values(cards));
  for (const [path, { summary, tags }] of Object.entries(openapi["x-websockets"])) {
    cards[tags[0]].append(element("p", element("code", `WebSocket ${path}`), " ", summary));
  }
  for (const [path, operations] of Object.entries(openapi.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const body = Object.values(operation.requestBody?.content ?? {})[0]?.schema;
      const details = { parameters: operation.parameters, body: body && { ...body, $defs: undefined } };
      const used = Object.keys(schemas).filter((name) => JSON.stringify(body ?? {}).includes(`/schemas/${name}"`));
      if (used.length) details.schemas = Object.fromEntries(used.map((name) => [name, schemas[name]]));
      cards[operation.tags[0]].append(entry(`${method.toUpperCase()} ${path}`, operation.summary ?? "", details));
    }
  }
}

function showMessages(schema) {
  for (const [union, direction] of [["ClientMessage", "to the worker"], ["WorkerMessage", "from the worker"]]) {
    for (const { $ref } of schema.$defs[union].anyOf) {
      const message = schema.$defs[$ref.split("/").at(-1)];
      const text = `${direction}: ${message.description?.split("\n")[0] ?? ""}`;
      document.querySelector("#messages").append(entry(message.properties.type.enum[0], text, message.properties));
    }
  }
}

try {
  showRoutes(await fetchJson("/openapi.json"));
  showMessages(await fetchJson("/v1/stream/schema.json"));
} catch (error) {
  document.querySelector("#problem").textContent = error.message;
}
