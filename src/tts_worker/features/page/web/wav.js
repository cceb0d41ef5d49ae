/**
 * WAV files: one written from samples, the length of a streamed one corrected, and its samples read.
 *
 * Offers: wavOf, withLength, samplesOf.
 */

const HEADER_BYTES = 44;

/** A 16-bit mono WAV file of samples from -1 to 1. @param {Float32Array} samples @param {number} rateHz @returns {Blob} */
export function wavOf(samples, rateHz) {
  const file = new DataView(new ArrayBuffer(HEADER_BYTES + 2 * samples.length));
  const write = (at, text) => [...text].forEach((letter, i) => file.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  file.setUint32(4, file.byteLength - 8, true);
  write(8, "WAVEfmt ");
  file.setUint32(16, 16, true);
  file.setUint16(20, 1, true); // PCM
  file.setUint16(22, 1, true); // mono
  file.setUint32(24, rateHz, true);
  file.setUint32(28, 2 * rateHz, true);
  file.setUint16(32, 2, true);
  file.setUint16(34, 16, true);
  write(36, "data");
  file.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => {
    file.setInt16(HEADER_BYTES + 2 * i, Math.max(-32768, Math.min(32767, Math.round(sample * 32768))), true);
  });
  return new Blob([file.buffer], { type: "audio/wav" });
}

/** The offset of the samples, after all headers. @param {DataView} file @returns {number} 0 if there are none */
function dataOffset(file) {
  for (let at = 12; at + 8 <= Math.min(file.byteLength, 4096); at += 8 + file.getUint32(at + 4, true)) {
    if (file.getUint32(at) === 0x64617461) return at + 8; // "data"
  }
  return 0;
}

/** A streamed WAV file does not know its length when it begins; a file on a disk should. @param {Blob} streamed */
export async function withLength(streamed) {
  const file = new DataView(await streamed.arrayBuffer());
  const offset = dataOffset(file);
  if (offset) {
    file.setUint32(4, file.byteLength - 8, true);
    file.setUint32(offset - 4, file.byteLength - offset, true);
  }
  return new Blob([file.buffer], { type: "audio/wav" });
}

/** The samples of a 16-bit mono file. @param {Blob} wav */
export async function samplesOf(wav) {
  const file = await wav.arrayBuffer();
  const offset = dataOffset(new DataView(file)) || file.byteLength;
  return new Int16Array(file.slice(offset, offset + 2 * Math.floor((file.byteLength - offset) / 2)));
}
