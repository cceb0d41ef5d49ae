/**
 * The form that tries a route of the OpenAPI description: its fields, the request as curl, and the answer.
 *
 * A body in JSON is a text to be edited, a form has a field for each property. What is left empty is not sent.
 */

import { authorization, keyStore } from "./api.js";
import { element } from "./elements.js";

const LONGEST = 100_000; // characters of an answer that are shown

/** Bodies to begin with; elsewhere the required properties. */
const EXAMPLES = {
  "POST /v1/audio/speech": { input: "Hello there.", response_format: "wav" },
  "POST /v1/batch": { items: [{ input: "Welcome." }] },
  "POST /v1/tokens": { seconds: 300 },
  "POST /v1/lexicons": { name: "brands", entries: { nginx: "engine x" } },
  "PUT /v1/lexicons/{name}": { entries: { nginx: "engine x" } },
};

/** The schema that a `$ref` names. */
function resolved(schema, openapi) {
  return schema?.$ref ? openapi.components.schemas[schema.$ref.split("/").at(-1)] : (schema ?? {});
}

/** What a field takes, in words. */
function kindOf(schema, openapi) {
  const { anyOf, enum: values, type, format, items, const: only } = resolved(schema, openapi);
  if (anyOf) {
    const kinds = anyOf.map((each) => kindOf(each, openapi)).filter((kind) => kind !== "null");
    return [...new Set(kinds)].join(" or ");
  }
  if (values) return values.map((value) => JSON.stringify(value)).join(", ");
  if (only !== undefined) return JSON.stringify(only);
  if (type === "array") return `list of ${kindOf(items, openapi)}`;
  return format === "binary" ? "file" : (type ?? "any");
}

/** A value with which a required property may begin. */
function exampleOf(schema, openapi) {
  const { enum: values, type, anyOf } = resolved(schema, openapi);
  if (values) return values[0];
  if (anyOf) return exampleOf(anyOf[0], openapi);
  return { string: "", integer: 0, number: 0, boolean: false, array: [], object: {} }[type] ?? null;
}

/** A body with the required properties. */
function requiredOf({ required = [], properties }, openapi) {
  return Object.fromEntries(required.map((name) => [name, exampleOf(properties[name], openapi)]));
}

/** A table of the fields: name, what it takes, its default. */
function fieldTable(schema, openapi) {
  const { properties = {}, required = [] } = schema;
  const rows = Object.entries(properties).map(([name, property]) => {
    const given = property.default ?? resolved(property, openapi).default;
    const preset = required.includes(name) ? "required" : (given ?? null) === null ? "" : JSON.stringify(given);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, name),
      element("td", {}, kindOf(property, openapi)),
      element("td", {}, preset),
    );
  });
  return rows.length ? [element("table", { className: "fields" }, element("tbody", {}, ...rows))] : [];
}

/** An input with its label. */
function input(label, properties) {
  const preset = { type: "text", autocomplete: "off", spellcheck: false };
  return element("label", {}, label, element("input", { ...preset, ...properties }));
}

/** Text for a shell, in quotes if it needs them. */
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** The request that the form describes: `{url, method, headers, body}`, and its parts for curl. */
function requestOf(form, method, path, type, parameters) {
  const valueOf = (name) => form.elements.namedItem(name).value;
  const values = Object.fromEntries(parameters.map(({ name }) => [name, valueOf(`parameter ${name}`)]));
  const filled = path.replace(/\{([^}]+)\}/g, (_, name) => encodeURIComponent(values[name]));
  const url = new URL(filled, location.origin);
  const headers = { ...authorization() };
  const curl = ["curl"];
  if (method !== "GET" && !(method === "POST" && type)) curl.push("-X", method);
  for (const { name, in: place } of parameters) {
    if (!values[name]) continue;
    if (place === "query") url.searchParams.set(name, values[name]);
    if (place === "header") {
      headers[name] = values[name];
      curl.push("-H", quoted(`${name}: ${values[name]}`));
    }
  }
  curl.push(quoted(url.href));
  if (keyStore.key) curl.push("-H", '"Authorization: Bearer $KEY"');
  let body;
  if (type === "application/json") {
    body = valueOf("body");
    headers["Content-Type"] = type;
    curl.push("-d", quoted(body));
  } else if (type) {
    body = new FormData();
    for (const field of form.querySelectorAll("[data-property]")) {
      const value = field.type === "file" ? field.files[0] : field.value;
      if (!value) continue;
      body.append(field.name, value);
      curl.push("-F", quoted(`${field.name}=${field.type === "file" ? `@${value.name}` : value}`));
    }
  }
  return { url, options: { method, headers, body }, curl: curl.join(" ") };
}

/** Shows an answer as what it is: audio to be played, JSON, or text. */
async function shownAnswer(response) {
  const type = response.headers.get("content-type") ?? "";
  const blob = await response.blob();
  if (type.startsWith("audio/")) {
    return [element("audio", { controls: true, src: URL.createObjectURL(blob) }), `${blob.size} bytes of ${type}`];
  }
  let text = await blob.text();
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // text of another kind
  }
  return [element("pre", { tabIndex: 0 }, text.slice(0, LONGEST))];
}

/**
 * The form of an operation.
 * @param {string} method in capitals
 * @param {string} path with parameters in braces
 * @param {object} operation of the OpenAPI document
 * @param {object} openapi the document
 */
export function tryIt(method, path, operation, openapi) {
  const [type, content] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
  const schema = resolved(content?.schema, openapi);
  const parameters = operation.parameters ?? [];
  const form = element("form", {}, ...fieldTable(schema, openapi));
  for (const { name, in: place, required } of parameters) {
    form.append(input(name, { name: `parameter ${name}`, required: required || place === "path" }));
  }
  if (type === "application/json") {
    const value = JSON.stringify(EXAMPLES[`${method} ${path}`] ?? requiredOf(schema, openapi), null, 2);
    const rows = value.split("\n").length + 1;
    form.append(element("label", {}, "Body", element("textarea", { name: "body", value, rows, spellcheck: false })));
  } else {
    for (const [name, property] of Object.entries((type && schema.properties) ?? {})) {
      const isFile = kindOf(property, openapi).split(" or ").includes("file");
      form.append(input(name, { name, type: isFile ? "file" : "text", dataset: { property: name } }));
    }
  }
  const curl = element("pre", { className: "curl", tabIndex: 0, ariaLabel: "The request as a command" });
  const status = element("p", { className: "status hint", role: "status" });
  const answer = element("div", { className: "answer" });
  const button = element("button", { className: "primary" }, "Try it");
  form.append(curl, element("div", { className: "controls" }, button, status), answer);
  const update = () => {
    curl.textContent = requestOf(form, method, path, type, parameters).curl;
  };
  form.addEventListener("input", update);
  update();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { url, options } = requestOf(form, method, path, type, parameters);
    answer.replaceChildren();
    status.textContent = "Sent.";
    const began = performance.now();
    try {
      const response = await fetch(url, options);
      const headers_ms = performance.now() - began;
      answer.replaceChildren(...(await shownAnswer(response)));
      const total_ms = performance.now() - began;
      const times = `headers after ${headers_ms.toFixed(0)} ms, all after ${total_ms.toFixed(0)} ms`;
      status.textContent = `${response.status} ${response.statusText}, ${times}`;
    } catch {
      status.textContent = "The server did not answer.";
    }
  });
  return form;
}
