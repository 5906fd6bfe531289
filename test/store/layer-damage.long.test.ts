import assert from 'node:assert/strict';
import { closeSync, openSync, readFileSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import {
  getDeletedSegment,
  getRowSegments,
  HEADER_BYTES,
  type LayerHeader,
} from '../../lib/core/layer-format.ts';
import { decodeHeader } from '../../lib/core/layer-header.ts';
import { verifyLayerFile } from '../../lib/store/layer-check.ts';
import { readAllRows, readDeleted } from './support/arbitrary-layer.ts';
import { GOLDEN_FOLDER } from './support/golden.ts';
import { temporaryFolder } from './support/layers.ts';
import { sealHeader, sealLayer } from './support/seal.ts';

function golden(file: string): Uint8Array {
  return new Uint8Array(readFileSync(join(GOLDEN_FOLDER, file)));
}

/** Reads everything. Returns the error, or undefined when all was read; fails for other errors. */
function findError(path: string, read: (path: string) => unknown): CubeError | undefined {
  try {
    read(path);
    return undefined;
  } catch (error) {
    if (!(error instanceof CubeError)) throw error;
    assert.ok(error.code === 'CORRUPT' || error.code === 'UNSUPPORTED', error.message);
    return error;
  }
}

function readEverything(path: string): void {
  readAllRows(path);
  readDeleted(path);
}

for (const file of ['inline-f16.cube', 'indexed-i8.cube', 'delta-bytes.cube']) {
  test(`${file}: every flipped byte and every truncation is refused`, (context) => {
    const bytes = golden(file);
    const path = join(temporaryFolder(context), file);
    writeFileSync(path, bytes);
    const open = openSync(path, 'r+');
    try {
      for (let at = 0; at < bytes.length; at++) {
        writeSync(open, Uint8Array.of(bytes[at]! ^ (1 << (at % 8))), 0, 1, at);
        assert.ok(findError(path, readEverything) !== undefined, `byte ${at} flipped`);
        writeSync(open, bytes, at, 1, at);
      }
    } finally {
      closeSync(open);
    }
    assert.equal(findError(path, readEverything), undefined, 'the file itself is right');
    for (let length = 0; length < bytes.length; length += length < 64 ? 1 : 173) {
      writeFileSync(path, bytes.subarray(0, length));
      assert.ok(findError(path, readEverything) !== undefined, `${length} bytes`);
    }
    writeFileSync(path, Uint8Array.of(...bytes, 0));
    assert.ok(findError(path, readEverything) !== undefined, 'a byte more');
  });
}

interface Bench {
  readonly path: string;
  readonly bytes: Uint8Array;
  readonly header: LayerHeader;
}

function setUp(context: TestContext, file: string): Bench {
  const bytes = golden(file);
  const header = decodeHeader(bytes, file);
  return { path: join(temporaryFolder(context), file), bytes, header };
}

/** Address of the first non-empty slot of a slot table. */
function firstTaken({ bytes, header }: Bench, at: number, stride: number): number {
  const view = new DataView(bytes.buffer);
  while (view.getBigUint64(at, true) === header.emptyKey) at += stride;
  return at;
}

test('wrong index, rows or deleted keys are refused despite valid checksums', (context) => {
  const check = (
    file: string,
    harm: (view: DataView, bench: Bench) => void,
    deep: RegExp,
    read?: RegExp,
  ): void => {
    const bench = setUp(context, file);
    harm(new DataView(bench.bytes.buffer), bench);
    writeFileSync(bench.path, sealLayer(bench.bytes));
    const found = findError(bench.path, (path) => verifyLayerFile(path, { deep: true }));
    assert.match(found?.message ?? 'accepted', deep, file);
    if (read === undefined) return;
    assert.match(findError(bench.path, readEverything)?.message ?? 'accepted', read, file);
  };
  const wrongPlace = /the index has a wrong location for key \d+/;
  const nextPlace = (view: DataView, bench: Bench): void => {
    const at = firstTaken(bench, HEADER_BYTES, 16) + 8;
    view.setUint32(at, view.getUint32(at, true) + 1, true);
  };
  check('indexed-f16.cube', nextPlace, wrongPlace, wrongPlace);
  check('indexed-bytes.cube', nextPlace, wrongPlace, wrongPlace);
  const longer = (view: DataView, bench: Bench): void => {
    const at = firstTaken(bench, HEADER_BYTES, 16) + 12;
    view.setUint32(at, view.getUint32(at, true) + 2 ** 31, true);
  };
  check('indexed-bytes.cube', longer, wrongPlace, wrongPlace);
  const otherKey = (view: DataView, bench: Bench): void => {
    const at = firstTaken(bench, HEADER_BYTES, 16);
    view.setUint32(at, view.getUint32(at, true) ^ 0x100, true);
  };
  check('indexed-i8.cube', otherKey, /segment 0: (the key in slot|slot) \d+/);
  const otherDeleted = (view: DataView, bench: Bench): void => {
    const at = firstTaken(bench, getDeletedSegment(bench.header)!.offset, 8);
    view.setUint32(at, view.getUint32(at, true) ^ 0x10, true);
  };
  check('delta-f16.cube', otherDeleted, /deleted keys: (the key in slot|slot) \d+/);
  const lost = (view: DataView, bench: Bench): void => {
    const at = firstTaken(bench, getDeletedSegment(bench.header)!.offset, 8);
    view.setBigUint64(at, bench.header.emptyKey, true);
  };
  check('delta-f32.cube', lost, /deleted keys: it holds 2 keys, not 3/);
  const infinite = (view: DataView, { header }: Bench): void =>
    view.setUint16(getRowSegments(header)[0]!.offset, 0x7c00, true);
  check('indexed-i8.cube', infinite, /a scale or an offset that is not finite/);
  const padded = (view: DataView, { header }: Bench): void =>
    view.setUint8(getRowSegments(header)[0]!.offset + 11, 1);
  check('indexed-f16.cube', padded, /the padding of a row is not zero/);
  const otherElement = (view: DataView, { header }: Bench): void =>
    view.setUint8(getRowSegments(header)[0]!.offset, 1);
  check('indexed-f16.cube', otherElement, /its content is/);
});

const HOSTILE = [0n, 1n, 2n, 7n, 2n ** 31n, 2n ** 32n - 1n, 2n ** 53n, 2n ** 63n, 2n ** 64n - 1n];

for (const file of ['indexed-bytes.cube', 'indexed-f16.cube', 'delta-i8.cube']) {
  test(`${file}: a hostile header with a valid checksum is refused or harmless`, (context) => {
    const { path, bytes } = setUp(context, file);
    for (let at = 40; at < 640; at += 4) {
      for (const value of HOSTILE) {
        const hostile = bytes.slice();
        const view = new DataView(hostile.buffer);
        const wide = value > 0xffff_ffffn;
        if (wide) view.setBigUint64(at, value, true);
        else view.setUint32(at, Number(value), true);
        const same = hostile.every((byte, i) => byte === bytes[i]);
        sealHeader(hostile);
        try {
          decodeHeader(hostile.subarray(0, HEADER_BYTES), file);
        } catch (error) {
          assert.ok(error instanceof CubeError, String(error));
          continue;
        }
        writeFileSync(path, hostile);
        findError(path, readEverything);
        const deep = findError(path, (one) => verifyLayerFile(one, { deep: true }));
        assert.equal(deep === undefined, same, `field ${at} = ${value}`);
      }
    }
  });
}

test('random sections with valid checksums fail the deep check', (context) => {
  const files = ['inline-i8.cube', 'indexed-bytes.cube', 'indexed-f16.cube', 'delta-bytes.cube'];
  const benches = files.map((file) => setUp(context, file));
  const change = fc.record({ at: fc.nat(), byte: fc.nat({ max: 255 }) });
  fc.assert(
    fc.property(
      fc.nat({ max: files.length - 1 }),
      fc.array(change, { minLength: 1, maxLength: 8 }),
      (number, changes) => {
        const { path, bytes, header } = benches[number]!;
        const hostile = bytes.slice();
        const sections = [...header.segments, getDeletedSegment(header)].filter(
          (one) => one !== undefined,
        );
        for (const { at, byte } of changes) {
          const { offset, bytes: length } = sections[at % sections.length]!;
          hostile[offset + (at % length)] = byte;
        }
        if (hostile.every((byte, i) => byte === bytes[i])) return;
        writeFileSync(path, sealLayer(hostile));
        findError(path, readEverything);
        const deep = findError(path, (one) => verifyLayerFile(one, { deep: true }));
        assert.ok(deep !== undefined);
      },
    ),
    { numRuns: 300 },
  );
});
