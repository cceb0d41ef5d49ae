/**
 * QR codes for short addresses: bytes, error correction M, versions 1 to 6 (ISO/IEC 18004).
 *
 * It knows neither the page nor the network. Offers: qrMatrix, drawQr.
 */

/** For each version from 1: data and error-correction bytes of a block, and the number of (equal) blocks. */
const VERSIONS = [
  [16, 10, 1],
  [28, 16, 1],
  [44, 26, 1],
  [32, 18, 2],
  [43, 24, 2],
  [27, 16, 4],
];
const QUIET = 4; // modules of white around the code
const MASKS = [
  (row, column) => (row + column) % 2,
  (row) => row % 2,
  (_row, column) => column % 3,
  (row, column) => (row + column) % 3,
  (row, column) => (Math.floor(row / 2) + Math.floor(column / 3)) % 2,
  (row, column) => ((row * column) % 2) + ((row * column) % 3),
  (row, column) => (((row * column) % 2) + ((row * column) % 3)) % 2,
  (row, column) => (((row + column) % 2) + ((row * column) % 3)) % 2,
];

// -- error correction: polynomials over GF(256) with x^8 + x^4 + x^3 + x^2 + 1 -----------------------------------------

const EXP = [];
for (let value = 1; EXP.length < 255; value = (value << 1) ^ (value > 127 ? 0x11d : 0)) EXP.push(value);
const LOG = Object.fromEntries(EXP.map((value, exponent) => [value, exponent]));
const times = (a, b) => (a && b ? EXP[(LOG[a] + LOG[b]) % 255] : 0);

/** The polynomial with the roots 2^0 to 2^(count - 1), without its leading 1. */
function generator(count) {
  let polynomial = [1];
  for (let i = 0; i < count; i += 1) {
    polynomial = [...polynomial, 0].map((value, at) => value ^ times(polynomial[at - 1] ?? 0, EXP[i]));
  }
  return polynomial.slice(1);
}

/** The error-correction bytes of a block: the remainder of its division by the generator. */
function correction(data, count) {
  const divisor = generator(count);
  let rest = Array(count).fill(0);
  for (const byte of data) {
    const factor = byte ^ rest[0];
    rest = divisor.map((value, at) => (rest[at + 1] ?? 0) ^ times(value, factor));
  }
  return rest;
}

// -- bytes -------------------------------------------------------------------------------------------------------------

/** All bytes of the code: data and correction of its blocks, interleaved. */
function codewords(bytes, [dataBytes, correctionBytes, blocks]) {
  const capacity = dataBytes * blocks;
  // The mode (4: bytes) and the length take twelve bits, so every byte is split between two.
  const nibbles = [4, bytes.length >> 4, bytes.length & 15, ...bytes.flatMap((byte) => [byte >> 4, byte & 15]), 0];
  const data = [];
  for (let at = 0; at < nibbles.length; at += 2) data.push((nibbles[at] << 4) | nibbles[at + 1]);
  for (let pad = 0xec; data.length < capacity; pad ^= 0xec ^ 0x11) data.push(pad);
  const split = Array.from({ length: blocks }, (_, block) => data.slice(block * dataBytes, (block + 1) * dataBytes));
  const corrections = split.map((block) => correction(block, correctionBytes));
  const interleave = (rows) => rows[0].flatMap((_, at) => rows.map((row) => row[at]));
  return [...interleave(split), ...interleave(corrections)];
}

// -- modules -----------------------------------------------------------------------------------------------------------

/** What does not depend on the data; null elsewhere. */
function patterns(version) {
  const size = 17 + 4 * version;
  const modules = Array.from({ length: size }, () => Array(size).fill(null));
  const square = (row, column, radius, isDark) => {
    for (let y = -radius; y <= radius; y += 1) {
      for (let x = -radius; x <= radius; x += 1) {
        const line = modules[row + y];
        if (line?.[column + x] !== undefined) line[column + x] = isDark(Math.max(Math.abs(x), Math.abs(y)));
      }
    }
  };
  for (const [row, column] of [[3, 3], [3, size - 4], [size - 4, 3]]) {
    square(row, column, 4, (distance) => distance !== 2 && distance !== 4);
  }
  if (version > 1) square(size - 7, size - 7, 2, (distance) => distance !== 1);
  for (let at = 8; at < size - 8; at += 1) modules[6][at] = modules[at][6] = at % 2 === 0;
  placeFormat(modules, 0);
  return modules;
}

/** The mask and the level of error correction, twice. */
function placeFormat(modules, mask) {
  const size = modules.length;
  let rest = mask << 10; // level M is 00
  for (let bit = 14; bit >= 10; bit -= 1) if (rest & (1 << bit)) rest ^= 0x537 << (bit - 10);
  const bits = ((mask << 10) | rest) ^ 0x5412;
  for (let at = 0; at < 15; at += 1) {
    const isDark = Boolean(bits & (1 << at));
    if (at < 8) modules[8][size - 1 - at] = isDark;
    else modules[size - 15 + at][8] = isDark;
    if (at < 8) modules[at < 6 ? at : at + 1][8] = isDark;
    else modules[8][at === 8 ? 7 : 14 - at] = isDark;
  }
  modules[size - 8][8] = true;
}

/** Fill the free modules in pairs of columns, from the right, up and down in turn. */
function placeData(modules, bytes, mask) {
  const size = modules.length;
  const filled = modules.map((line) => [...line]);
  let bit = 0;
  let isUpward = true;
  for (let right = size - 1; right > 0; right -= 2) {
    if (right === 6) right -= 1; // the column of the timing pattern
    for (let step = 0; step < size; step += 1) {
      const row = isUpward ? size - 1 - step : step;
      for (const column of [right, right - 1]) {
        if (modules[row][column] !== null) continue;
        const isSet = Boolean((bytes[bit >> 3] ?? 0) & (128 >> (bit & 7)));
        filled[row][column] = isSet !== (MASKS[mask](row, column) === 0);
        bit += 1;
      }
    }
    isUpward = !isUpward;
  }
  placeFormat(filled, mask);
  return filled;
}

/** How hard a code is to read: runs of five and more, and squares of one color. */
function penalty(modules) {
  const lines = [...modules, ...modules[0].map((_, column) => modules.map((line) => line[column]))];
  let points = 0;
  for (const line of lines) {
    for (const run of line.map(Number).join("").match(/0{5,}|1{5,}/g) ?? []) points += run.length - 2;
  }
  for (let row = 1; row < modules.length; row += 1) {
    for (let column = 1; column < modules.length; column += 1) {
      const [a, b, c, d] = [[0, 0], [0, 1], [1, 0], [1, 1]].map(([y, x]) => modules[row - y][column - x]);
      if (a === b && b === c && c === d) points += 3;
    }
  }
  return points;
}

/** @param {string} text @returns {boolean[][] | null} dark modules, without a margin; null if the text is too long */
export function qrMatrix(text) {
  const bytes = [...new TextEncoder().encode(text)];
  const index = VERSIONS.findIndex(([data, , blocks]) => bytes.length + 2 <= data * blocks);
  if (index < 0) return null;
  const data = codewords(bytes, VERSIONS[index]);
  const free = patterns(index + 1);
  const candidates = MASKS.map((_, mask) => placeData(free, data, mask));
  return candidates.reduce((best, other) => (penalty(other) < penalty(best) ? other : best));
}

/** Draw a code, black on white in every color scheme. @param {HTMLCanvasElement} canvas @param {boolean[][]} modules */
export function drawQr(canvas, modules, scale = 4) {
  canvas.width = canvas.height = (modules.length + 2 * QUIET) * scale;
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = "#000";
  modules.forEach((line, row) =>
    line.forEach((isDark, column) => isDark && pen.fillRect((column + QUIET) * scale, (row + QUIET) * scale, scale, scale)),
  );
}
