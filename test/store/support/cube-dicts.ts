/** Dictionary directories as Cube's own builder writes them, base and patch. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export type Entry = readonly [key: bigint, value: Uint8Array];

/** The entries of each index file in turn: a base has one, each patch adds one. */
export function writeCubeDict(folder: string, parts: readonly (readonly Entry[])[]): void {
  mkdirSync(folder, { recursive: true });
  parts.forEach((entries, i) => {
    const index = Buffer.alloc(16 * entries.length);
    const records: Buffer[] = [];
    let offset = 0;
    entries.forEach(([key, value], n) => {
      index.writeBigUInt64LE(key, 16 * n);
      index.writeUInt32LE(offset, 16 * n + 8);
      index.writeUInt32LE(i, 16 * n + 12);
      const length = Buffer.alloc(4);
      length.writeUInt32LE(4 + value.length);
      records.push(length, Buffer.from(value));
      offset += 4 + value.length;
    });
    writeFileSync(join(folder, `index.${i}`), index);
    writeFileSync(join(folder, `data.${i}`), Buffer.concat(records));
  });
  writeLists(folder, parts.length);
}

function writeLists(folder: string, count: number): void {
  const size = (name: string, i: number): number =>
    readFileSync(join(folder, `${name}.${i}`)).length;
  const index = Buffer.alloc(12 + 8 * count);
  const data = Buffer.alloc(4 + 4 * count);
  index.writeUInt32LE(count, 8);
  data.writeUInt32LE(count, 0);
  let entries = 0;
  for (let i = 0; i < count; i++) {
    index.writeBigUInt64LE(BigInt(size('index', i)), 12 + 8 * i);
    data.writeUInt32LE(size('data', i), 4 + 4 * i);
    entries += size('index', i) / 16;
  }
  index.writeUInt32LE(entries, 4);
  writeFileSync(join(folder, 'index.n'), index);
  writeFileSync(join(folder, 'data.n'), data);
}

export function floats(...values: number[]): Uint8Array {
  return new Uint8Array(Float32Array.from(values).buffer);
}
