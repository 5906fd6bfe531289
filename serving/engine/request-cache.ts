/**
 * A cache of one version's results by the content of their requests: a repeated request costs no
 * more than a copy of its input. The size is limited in bytes; the least recently used entry is
 * evicted first.
 */
import type { KeyedRows } from '../../lib/core/feature-rows.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import type { GraphInputs } from './graph-request.ts';
import type { Prediction } from './prediction.ts';

/** Approximate bookkeeping of one entry. */
const ENTRY_BYTES = 512;

interface Entry<V> {
  readonly value: V;
  readonly bytes: number;
}

export class RequestCache<V> {
  readonly #bytesMax: number;
  /** Least recently used first. */
  readonly #entries = new Map<string, Entry<V>>();
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** Used now. */
  get bytes(): number {
    return this.#bytes;
  }

  get(key: string): V | undefined {
    const entry = this.#entries.get(key);
    if (entry === undefined) return undefined;
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    return entry.value;
  }

  /** @param valueBytes the size of the value */
  put(key: string, value: V, valueBytes: number): void {
    const bytes = ENTRY_BYTES + key.length + valueBytes;
    if (bytes > this.#bytesMax) return;
    this.#remove(key);
    this.#entries.set(key, { value, bytes });
    this.#bytes += bytes;
    for (const oldest of this.#entries.keys()) {
      if (this.#bytes <= this.#bytesMax) return;
      this.#remove(oldest);
    }
  }

  #remove(key: string): void {
    this.#bytes -= this.#entries.get(key)?.bytes ?? 0;
    this.#entries.delete(key);
  }
}

/** A string that is equal only for equal rows, with one character per byte. */
export function toCacheKey({ rowCount, keys, dense, ends }: KeyedRows): string {
  const parts = [toLatin1(keys), toLatin1(dense), ends === undefined ? '' : toLatin1(ends)];
  return `${rowCount} ${keys.length} ${dense.length} ${parts.join('')}`;
}

export function countPredictionBytes({ outputs }: Prediction): number {
  return outputs.reduce((sum, { data }) => sum + data.byteLength, 0);
}

/** A string that is equal only for equal inputs and outputs of a plain model. */
export function toGraphCacheKey({ tensors, outputs }: GraphInputs): string {
  const parts = tensors.map(({ shape, data }) => {
    const text = data instanceof Uint8Array ? toLatin1(data) : JSON.stringify(data);
    return `[${shape.join()}] ${text.length} ${text}`;
  });
  return `${JSON.stringify(outputs)} ${parts.join('')}`;
}

export function countTensorBytes(tensors: readonly NamedTensor[]): number {
  return tensors.reduce((sum, { data }) => {
    if (data instanceof Uint8Array) return sum + data.length;
    return sum + data.reduce((chars, text) => chars + 2 * text.length, 0);
  }, 0);
}

function toLatin1({ buffer, byteOffset, byteLength }: ArrayBufferView): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString('latin1');
}
