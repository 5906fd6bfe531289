/** Corrects the checksums of a changed layer file, as a malicious author would. */
import { xxh64 } from '../../../lib/core/hash.ts';
import { BLOCK_BYTES, HEADER_BYTES } from '../../../lib/core/layer-format.ts';

/** Corrects all checksums in place, except the content id. */
export function sealLayer(bytes: Uint8Array): Uint8Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const checksumsOffset = Number(view.getBigUint64(168, true));
  for (let at = HEADER_BYTES, block = 0; at < checksumsOffset; at += BLOCK_BYTES, block++) {
    const hash = xxh64(bytes.subarray(at, Math.min(at + BLOCK_BYTES, checksumsOffset)));
    view.setBigUint64(checksumsOffset + 8 * block, hash, true);
  }
  view.setBigUint64(176, xxh64(bytes.subarray(checksumsOffset)), true);
  return sealHeader(bytes);
}

/** Corrects the checksum of the header page in place. */
export function sealHeader(bytes: Uint8Array): Uint8Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  view.setBigUint64(16, 0n, true);
  view.setBigUint64(16, xxh64(bytes.subarray(0, HEADER_BYTES)), true);
  return bytes;
}
