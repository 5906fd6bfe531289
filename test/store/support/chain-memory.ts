/**
 * Layer files in one memory with their parameter blocks, looked up by calling the kernels directly.
 */
import { readFileSync } from 'node:fs';
import { PARAMS_BYTES, READ_AHEAD_BYTES, WORK_BYTES } from '../../../lib/core/kernels/contract.ts';
import { createKernels, createMemory, type KernelKind } from '../../../lib/core/kernels/kernels.ts';
import {
  alignUp,
  getDeletedSegment,
  getKeySegments,
  getRowSegments,
  type LayerHeader,
  type LayerSegment,
} from '../../../lib/core/layer-format.ts';
import { decodeHeader } from '../../../lib/core/layer-header.ts';
import { getLocationLength, getLocationOffset } from '../../../lib/core/value-locations.ts';
import { packKeys } from './layers.ts';

const PROBES_MAX = 1024;
const ROW_BYTES_MAX = 256;
const WORK_AT = 0;
const KEYS_AT: number = alignUp(WORK_BYTES, 64);
const FOUND_AT: number = KEYS_AT + 8 * PROBES_MAX;
const DECIDED_AT: number = FOUND_AT + PROBES_MAX / 8;
const STORED_AT: number = DECIDED_AT + PROBES_MAX / 8;
const PLACES_AT: number = STORED_AT + PROBES_MAX / 8;
const ROWS_AT: number = PLACES_AT + 8 * PROBES_MAX;
const LAYERS_AT: number = ROWS_AT + ROW_BYTES_MAX * PROBES_MAX;

interface PlacedLayer {
  readonly header: LayerHeader;
  /** Addresses of parameter blocks. */
  readonly keyed: readonly number[];
  readonly rows: readonly number[];
  readonly deleted: number | undefined;
  /** For dtype bytes: address and length of each segment of values. */
  readonly values: readonly { at: number; bytes: number }[];
}

/** Per key its stored bytes in hex, or undefined. */
export type Answers = (string | undefined)[];

export class ChainModel {
  readonly #layers: PlacedLayer[] = [];
  readonly #memory: WebAssembly.Memory;
  readonly #kind: KernelKind;
  #end = LAYERS_AT;

  /** @param paths base first */
  constructor(paths: readonly string[], kind: KernelKind) {
    this.#memory = createMemory(LAYERS_AT + (4 << 20));
    this.#kind = kind;
    for (const path of paths) this.#layers.unshift(this.#place(new Uint8Array(readFileSync(path))));
  }

  #place(file: Uint8Array): PlacedLayer {
    const header = decodeHeader(file, 'test');
    const keyed = getKeySegments(header);
    const stored = getRowSegments(header);
    const deleted = getDeletedSegment(header);
    const dense = header.layout === 'dense';
    const rowBytes = header.layout === 'indexed' ? 8 : header.rowBytes;
    const isBytes = header.dtype === 'bytes';
    return {
      header,
      keyed: keyed.map((segment, i) =>
        this.#segment(file, header, segment, i, keyed.length, rowBytes, dense),
      ),
      rows: isBytes
        ? []
        : stored.map((segment, i) =>
            this.#segment(file, header, segment, i, stored.length, header.rowBytes, true),
          ),
      deleted:
        deleted &&
        this.#segment(file, { ...header, homeSlots: header.deletedHomeSlots }, deleted, 0, 1, 0),
      values: isBytes
        ? stored.map((segment) => ({ at: this.#copy(file, segment), bytes: segment.bytes }))
        : [],
    };
  }

  #copy(file: Uint8Array, { offset, bytes }: LayerSegment): number {
    const at = alignUp(this.#end, 64);
    this.#end = at + bytes + READ_AHEAD_BYTES;
    if (this.#end > this.#memory.buffer.byteLength) throw new Error('the memory is too small');
    new Uint8Array(this.#memory.buffer).set(file.subarray(offset, offset + bytes), at);
    return at;
  }

  /** Copies a segment behind its parameters. @returns the address of the parameters */
  #segment(
    file: Uint8Array,
    header: LayerHeader,
    segment: LayerSegment,
    index: number,
    count: number,
    rowBytes: number,
    dense = false,
  ): number {
    const params = alignUp(this.#end, 64);
    this.#end = params + PARAMS_BYTES;
    const at = this.#copy(file, segment);
    const view = new DataView(this.#memory.buffer, params, PARAMS_BYTES);
    const step = header.layout === 'dense' ? header.keyStep : 1n;
    view.setBigUint64(0, dense ? header.firstKey : header.emptyKey, true);
    view.setBigUint64(8, step, true);
    view.setBigUint64(16, BigInt(header.homeSlots), true);
    view.setBigUint64(24, BigInt(index * header.rowsPerSegment), true);
    view.setBigUint64(32, BigInt(segment.rows), true);
    view.setUint32(40, at, true);
    view.setUint32(44, segment.slots === 0 ? 0 : segment.bytes / segment.slots, true);
    view.setUint32(48, rowBytes, true);
    view.setUint32(52, index, true);
    view.setUint32(56, count, true);
    view.setInt32(64, (step & (step - 1n)) === 0n ? step.toString(2).length - 1 : -1, true);
    view.setUint32(68, header.shardIndex, true);
    view.setUint32(72, header.shardNum, true);
    return params;
  }

  /** At most 1024 keys. */
  lookup(keys: readonly bigint[]): Answers {
    const kernels = createKernels(this.#memory, this.#kind);
    const bytes = new Uint8Array(this.#memory.buffer);
    const words = new Uint32Array(this.#memory.buffer);
    const answers: Answers = keys.map(() => undefined);
    const count = keys.length;
    words.set(packKeys(keys), KEYS_AT / 4);
    bytes.fill(0, FOUND_AT, STORED_AT);
    for (const { header, keyed, rows, deleted, values } of this.#layers) {
      const { layout, dtype, rowBytes } = header;
      bytes.fill(0xff, PLACES_AT, PLACES_AT + 8 * count);
      const target = layout === 'indexed' ? PLACES_AT : ROWS_AT;
      if (deleted !== undefined) kernels.chainDeleted(deleted, WORK_AT, KEYS_AT, count, DECIDED_AT);
      for (const params of keyed) {
        const chain = layout === 'dense' ? 'chainDense' : 'chainInline';
        kernels[chain](params, WORK_AT, KEYS_AT, FOUND_AT, target, count, DECIDED_AT);
      }
      for (const params of rows) {
        kernels.lookupDense(params, WORK_AT, PLACES_AT, STORED_AT, ROWS_AT, count);
      }
      for (let i = 0; i < count; i++) {
        const isFound = (words[FOUND_AT / 4 + (i >> 5)]! >>> (i & 31)) & 1;
        if (!isFound || answers[i] !== undefined) continue;
        const at = ROWS_AT + i * rowBytes;
        const [low, high] = words.subarray(PLACES_AT / 4 + 2 * i);
        const row =
          dtype === 'bytes' ? this.#value(values, low!, high!) : bytes.subarray(at, at + rowBytes);
        answers[i] = Buffer.from(row).toString('hex');
      }
    }
    return answers;
  }

  get isIndexed(): boolean {
    return this.#layers[0]!.header.layout === 'indexed';
  }

  /** Looks up in a single layer, by the single-layer kernels. */
  lookupAlone(keys: readonly bigint[]): Answers {
    const kernels = createKernels(this.#memory, this.#kind);
    const bytes = new Uint8Array(this.#memory.buffer);
    const words = new Uint32Array(this.#memory.buffer);
    const { header, keyed } = this.#layers[0]!;
    words.set(packKeys(keys), KEYS_AT / 4);
    // Previous content must not matter, unless there are no keys in memory.
    bytes.fill(keyed.length === 0 ? 0 : 0xff, FOUND_AT, DECIDED_AT);
    const lookup = header.layout === 'dense' ? 'lookupDense' : 'lookupInline';
    let hits = 0;
    for (const params of keyed) {
      hits += kernels[lookup](params, WORK_AT, KEYS_AT, FOUND_AT, ROWS_AT, keys.length);
    }
    const answers = keys.map((_, i) => {
      const isFound = (words[FOUND_AT / 4 + (i >> 5)]! >>> (i & 31)) & 1;
      const at = ROWS_AT + i * header.rowBytes;
      return isFound
        ? Buffer.from(bytes.subarray(at, at + header.rowBytes)).toString('hex')
        : undefined;
    });
    if (hits !== answers.filter((answer) => answer !== undefined).length) {
      throw new Error(`${hits} hits`);
    }
    return answers;
  }

  #value(values: PlacedLayer['values'], low: number, high: number): Uint8Array {
    let offset = getLocationOffset(low, high);
    for (const { at, bytes } of values) {
      if (offset < bytes) {
        const start = at + offset;
        return new Uint8Array(this.#memory.buffer, start, getLocationLength(high));
      }
      offset -= bytes;
    }
    throw new Error('a place beyond all values');
  }
}
