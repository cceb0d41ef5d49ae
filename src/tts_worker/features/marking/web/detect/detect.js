/** The page that looks for the watermark of synthetic speech in a recording. */

const STORAGE_KEY = "tts-worker.key"; // that of the other pages

const byId = (id) => document.getElementById(id);

/** What was found, in a sentence. */
function describe(found) {
  if (!found.marked) return `No watermark found (score ${found.score}).`;
  const parts = found.parts.map(([start, end]) => `${start.toFixed(1)}–${end.toFixed(1)} s`).join(", ");
  const id = found.deployment_id ? `deployment ${found.deployment_id}` : "the deployment cannot be read";
  return `Synthetic: ${id}, marked from ${parts} (score ${found.score}).`;
}

async function examine(event) {
  event.preventDefault();
  const button = event.submitter;
  button.disabled = true;
  byId("found").textContent = "Examining…";
  byId("problem").textContent = "";
  const key = byId("key").value;
  const form = new FormData();
  form.append("audio", byId("recording").files[0]);
  try {
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const response = await fetch("/v1/audio/detect", { method: "POST", body: form, headers });
    const body = await response.json();
    if (!response.ok) throw new Error(body.error?.message ?? `The worker answered ${response.status}.`);
    byId("found").textContent = describe(body);
  } catch (error) {
    byId("found").textContent = "";
    byId("problem").textContent = error.message;
  } finally {
    button.disabled = false;
  }
}

try {
  byId("key").value = sessionStorage.getItem(STORAGE_KEY) ?? "";
} catch {
  // storage is disabled
}
byId("detect").addEventListener("submit", examine);
