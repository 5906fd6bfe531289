/**
 * A second reader of sealed files, written from docs/formats/sealed.md alone. It shares no code
 * with the project.
 */
import { createDecipheriv, createHash, createHmac } from 'node:crypto';

const MIB = 2 ** 20;

export function readSealed(file: Buffer, key: Buffer): Buffer {
  if (file.subarray(0, 8).toString('latin1') !== 'HCSEAL\r\n') throw new Error('magic');
  if (file.readUInt32LE(8) !== 1 || file.readUInt32LE(56) !== MIB) throw new Error('version');
  const keyId = createHash('sha256').update('hypercube key id 1\n').update(key).digest();
  if (!file.subarray(40, 48).equals(keyId.subarray(0, 8))) throw new Error('another key');
  const unwrap = createDecipheriv('id-aes256-wrap', key, Buffer.alloc(8, 0xa6));
  const dataKey = Buffer.concat([unwrap.update(file.subarray(64, 104)), unwrap.final()]);
  const nonce = Buffer.alloc(12);
  createHmac('sha256', dataKey).update('hypercube nonce 1').digest().copy(nonce, 0, 0, 8);
  const clearBytes = Number(file.readBigUInt64LE(48));
  const blocks = Math.max(1, Math.ceil(clearBytes / MIB));
  const clear: Buffer[] = [];
  let at = 128;
  for (let i = 0; i < blocks; i++) {
    const length = Math.min(MIB, clearBytes - i * MIB);
    nonce.writeUInt32LE(i, 8);
    const context = Buffer.alloc(25);
    file.copy(context, 0, 24, 40);
    context.writeBigUInt64LE(BigInt(i), 16);
    context[24] = i === blocks - 1 ? 1 : 0;
    const decipher = createDecipheriv('aes-256-gcm', dataKey, nonce, { authTagLength: 16 });
    decipher.setAAD(context).setAuthTag(file.subarray(at + length, at + length + 16));
    clear.push(decipher.update(file.subarray(at, at + length)), decipher.final());
    at += length + 16;
  }
  if (at !== file.length) throw new Error('length');
  return Buffer.concat(clear);
}
