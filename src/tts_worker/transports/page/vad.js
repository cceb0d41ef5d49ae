/**
 * Hears from the energy of a sound when somebody begins to speak: louder than the room for long enough.
 *
 * The room's noise is tracked all the time: downwards at once, upwards slowly, so that a fan that starts becomes part of
 * the room after a while and a sentence does not. Plain arithmetic on frames of 10 ms: it knows no microphone, no clock.
 */

export const FRAME_S = 0.01;
const CALIBRATION_FRAMES = 30;
/** How much louder than the room speech is, to begin and to go on, and what is too faint to be speech in any room. */
const BEGIN_DB = 12;
const GO_ON_DB = 6;
const FAINTEST_DB = -55;
/** A door or a key click is over before this. */
const BEGIN_FRAMES = 8;
/** Pauses between words are shorter than this. */
const END_FRAMES = 40;
const RISE_DB = 0.04; // a frame: 4 dB a second
const FALL = 0.2; // of the distance, a frame

export class Vad {
  speaking = false;
  /** How loud the room is, in dB of full scale. */
  floorDb = null;
  #frames = 0;
  #loud = 0; // frames of speech so far, less those of silence in between
  #quiet = 0;

  /**
   * Take one frame.
   * @param {number} levelDb its energy in dB of full scale
   * @returns {"begin" | "end" | null} what it changed; "begin" comes BEGIN_FRAMES after the first loud frame at best
   */
  take(levelDb) {
    this.#frames += 1;
    const aboveDb = levelDb - this.#follow(levelDb);
    if (this.#frames <= CALIBRATION_FRAMES) return null;
    return this.speaking ? this.#listenForEnd(aboveDb) : this.#listenForBegin(aboveDb, levelDb);
  }

  /** How long before now the speech began that was just noticed. */
  get noticedAfterS() {
    return BEGIN_FRAMES * FRAME_S;
  }

  #follow(levelDb) {
    if (this.floorDb === null) this.floorDb = levelDb;
    else if (levelDb < this.floorDb) this.floorDb += FALL * (levelDb - this.floorDb);
    else if (this.#frames <= CALIBRATION_FRAMES) this.floorDb += 0.5 * FALL * (levelDb - this.floorDb);
    else this.floorDb += Math.min(RISE_DB, levelDb - this.floorDb);
    return this.floorDb;
  }

  #listenForBegin(aboveDb, levelDb) {
    this.#loud = aboveDb > BEGIN_DB && levelDb > FAINTEST_DB ? this.#loud + 1 : Math.max(0, this.#loud - 1);
    if (this.#loud < BEGIN_FRAMES) return null;
    this.speaking = true;
    this.#quiet = 0;
    return "begin";
  }

  #listenForEnd(aboveDb) {
    this.#quiet = aboveDb < GO_ON_DB ? this.#quiet + 1 : Math.max(0, this.#quiet - 2); // a room is never quite still
    if (this.#quiet < END_FRAMES) return null;
    this.speaking = false;
    this.#loud = 0;
    return "end";
  }
}
