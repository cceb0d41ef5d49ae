/**
 * The page on a telephone in the same network: its address as a QR code, and what is missing for it.
 */
import { drawQr, qrMatrix } from "./qr.js";

const byId = (id) => document.getElementById(id);
const HINTS = {
  none: "This server listens on this machine only. Others reach it with --host 0.0.0.0 and an API key.",
  http: "There you can type. Browsers give the microphone to secure pages only: for that the server needs a certificate (tls_certificate).",
  https: "Same network, then scan.",
};

/** @param {string | null} address of the page for other devices */
export function showPhone(address) {
  const modules = address && qrMatrix(address);
  byId("qr").hidden = !modules;
  byId("phone-address").hidden = !address;
  byId("phone-hint").textContent = HINTS[address ? new URL(address).protocol.slice(0, -1) : "none"];
  if (!address) return;
  byId("phone-address").href = byId("phone-address").textContent = address;
  if (modules) drawQr(byId("qr"), modules);
}
