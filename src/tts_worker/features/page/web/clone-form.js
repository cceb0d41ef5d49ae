/**
 * The form that makes a voice of a recording, from a file or the microphone. It is shown where the server stores voices.
 */
import { addVoice } from "./api.js";
import { Recorder } from "./recorder.js";

const byId = (id) => document.getElementById(id);

export class CloneForm {
  #recorder = new Recorder({
    progress: (seconds) => (byId("clone-record").textContent = `Stop recording (${seconds.toFixed(0)} s)`),
    recorded: (file) => this.#take(file),
  });
  #recording = null; // the last recording of the microphone; a chosen file replaces it
  #listener;

  /** @param {{added(voice: object): void, listen(voice: string): void}} listener called with the voice that was made */
  constructor(listener) {
    this.#listener = listener;
    byId("clone-listen").addEventListener("click", ({ target }) => listener.listen(target.value));
    byId("clone-record").addEventListener("click", () => this.#toggleRecording());
    byId("clone-file").addEventListener("change", ({ target }) => target.files.length && this.#take(null));
    byId("clone-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  /** @param {boolean} offered whether the server stores voices */
  show(offered) {
    byId("clone").hidden = !offered;
  }

  async #toggleRecording() {
    if (this.#recorder.recording) {
      this.#recorder.stop();
      return;
    }
    this.#tell("");
    try {
      await this.#recorder.start();
    } catch (error) {
      this.#tell(error.message, true);
    }
  }

  /** @param {Blob | null} recording of the microphone, or null for the chosen file */
  #take(recording) {
    this.#recording = recording;
    byId("clone-record").textContent = recording ? "Record again" : "Record";
    if (recording) byId("clone-file").value = "";
    const audio = recording ?? byId("clone-file").files[0];
    const player = byId("clone-audio");
    URL.revokeObjectURL(player.src);
    player.src = URL.createObjectURL(audio);
    byId("clone-result").hidden = false;
    byId("clone-listen").hidden = true;
  }

  async #submit() {
    const audio = this.#recording ?? byId("clone-file").files[0];
    if (!audio) {
      this.#tell("There is no recording yet: choose a file or record one.", true);
      return;
    }
    const fields = new FormData();
    fields.set("audio", audio, audio.name ?? "recording.wav");
    fields.set("name", byId("clone-name").value.trim());
    fields.set("transcript", byId("clone-transcript").value.trim());
    fields.set("consent", String(byId("clone-consent").checked));
    this.#tell("The voice is being made.");
    byId("clone-submit").setAttribute("aria-disabled", "true");
    try {
      const voice = await addVoice(fields);
      const notes = voice.stored?.notes ?? [];
      this.#tell([`The voice ${voice.name} is ready.`, ...notes].join(" "));
      byId("clone-form").reset();
      this.#recording = null;
      byId("clone-listen").hidden = false; // beside the recording
      byId("clone-listen").value = voice.id;
      byId("clone-listen").textContent = `Listen to ${voice.name}`;
      this.#listener.added(voice);
    } catch (error) {
      this.#tell(error.message, true);
    } finally {
      byId("clone-submit").setAttribute("aria-disabled", "false");
    }
  }

  #tell(text, isProblem = false) {
    byId("clone-problem").textContent = isProblem ? text : "";
    byId("clone-status").textContent = isProblem ? "" : text;
  }
}
