/** The page that looks for the watermark of synthetic speech in a recording. */
import { authorization } from "../access.js";
import { problemOf, UNREACHABLE, unlock } from "../api.js";

const byId = (id) => document.getElementById(id);

/** What was found, in a sentence. */
function describe(found) {
  if (!found.marked) return `No watermark found (score ${found.score}).`;
  const parts = found.parts.map(([start, end]) => `${start.toFixed(1)}–${end.toFixed(1)} s`).join(", ");
  const id = found.deployment_id ? `deployment ${found.deployment_id}` : "the deployment cannot be read";
  return `Synthetic: ${id}, marked from ${parts} (score ${found.score}).`;
}

/** Send a recording. Rejects with an Error for the user. */
async function detect(recording) {
  const form = new FormData();
  form.append("audio", recording);
  let response, body;
  try {
    response = await fetch("/v1/audio/detect", { method: "POST", body: form, headers: authorization() });
    body = await response.json();
  } catch (error) {
    throw new Error(UNREACHABLE.text, { cause: error });
  }
  if (response.ok) return body;
  const problem = problemOf(response.status, body);
  if (problem.kind === "key") byId("key-form").hidden = false;
  throw new Error(problem.text);
}

async function examine() {
  const [recording] = byId("recording").files;
  if (!recording) return;
  byId("name").textContent = recording.name;
  byId("problem").textContent = "";
  byId("found").textContent = "Examining…";
  try {
    byId("found").textContent = describe(await detect(recording));
  } catch (error) {
    byId("found").textContent = "";
    byId("problem").textContent = error.message;
  }
}

async function enterKey(event) {
  event.preventDefault();
  try {
    await unlock(byId("key").value);
    byId("key-form").hidden = true;
    await examine();
  } catch (error) {
    byId("problem").textContent = error.message;
  } finally {
    byId("key").value = "";
  }
}

byId("recording").addEventListener("change", examine);
byId("detect").addEventListener("submit", (event) => event.preventDefault());
byId("key-form").addEventListener("submit", enterKey);
