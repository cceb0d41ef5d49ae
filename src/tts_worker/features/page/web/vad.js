/**
 * Voice activity detection by energy: reports speech when the level stays well above the background noise.
 *
 * The noise floor is tracked continuously: down at once, up slowly, so that a fan that starts becomes background after a
 * while and a sentence does not. Pure arithmetic on frames of 10 ms: no microphone, no clock.
 */

export const FRAME_S = 0.01;
const CALIBRATION_FRAMES = 30;
/** Level above the noise floor for speech to begin and to continue, and the absolute level below which nothing counts. */
const BEGIN_DB = 12;
const CONTINUE_DB = 6;
const MIN_SPEECH_DB = -55;
/** Longer than a door or a key click. */
const BEGIN_FRAMES = 8;
/** Longer than the pauses between words. */
const END_FRAMES = 40;
const RISE_DB = 0.04; // per frame: 4 dB per second
const FALL = 0.2; // fraction of the distance, per frame

export class VoiceActivityDetector {
  speaking = false;
  /** The level of the background noise, in dB of full scale. */
  floorDb = null;
  #frames = 0;
  #loudFrames = 0; // frames of speech so far, minus the silent ones in between
  #quietFrames = 0;

  /**
   * Process one frame.
   * @param {number} levelDb its energy in dB of full scale
   * @returns {"begin" | "end" | null} the change; "begin" comes BEGIN_FRAMES after the first loud frame at the earliest
   */
  process(levelDb) {
    this.#frames += 1;
    const aboveDb = levelDb - this.#trackFloor(levelDb);
    if (this.#frames <= CALIBRATION_FRAMES) return null;
    return this.speaking ? this.#detectEnd(aboveDb) : this.#detectBegin(aboveDb, levelDb);
  }

  /** How long before its detection speech began. */
  get detectionDelayS() {
    return BEGIN_FRAMES * FRAME_S;
  }

  #trackFloor(levelDb) {
    if (this.floorDb === null) this.floorDb = levelDb;
    else if (levelDb < this.floorDb) this.floorDb += FALL * (levelDb - this.floorDb);
    else if (this.#frames <= CALIBRATION_FRAMES) this.floorDb += 0.5 * FALL * (levelDb - this.floorDb);
    else this.floorDb += Math.min(RISE_DB, levelDb - this.floorDb);
    return this.floorDb;
  }

  #detectBegin(aboveDb, levelDb) {
    const loud = aboveDb > BEGIN_DB && levelDb > MIN_SPEECH_DB;
    this.#loudFrames = loud ? this.#loudFrames + 1 : Math.max(0, this.#loudFrames - 1);
    if (this.#loudFrames < BEGIN_FRAMES) return null;
    this.speaking = true;
    this.#quietFrames = 0;
    return "begin";
  }

  #detectEnd(aboveDb) {
    // Noise has single louder frames; they do not restart the count.
    this.#quietFrames = aboveDb < CONTINUE_DB ? this.#quietFrames + 1 : Math.max(0, this.#quietFrames - 2);
    if (this.#quietFrames < END_FRAMES) return null;
    this.speaking = false;
    this.#loudFrames = 0;
    return "end";
  }
}
