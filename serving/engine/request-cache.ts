/**
 * Answers of one version by the content of the rows that they answer, so that a request that comes again costs a copy of its keys.
 * Bounded in bytes; what was used longest ago goes first. What was answered degraded is never kept: the next may be whole.
 */
import type { KeyedRows } from '../../lib/core/features.ts';
import type { Prediction } from './prediction.ts';

/** Of the bookkeeping of one answer, about. */
const ENTRY_BYTES = 512;

interface Entry {
  readonly prediction: Prediction;
  readonly bytes: number;
}

export class RequestCache {
  readonly #bytesMax: number;
  /** In the order of last use. */
  readonly #entries = new Map<string, Entry>();
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** Held now. */
  get bytes(): number {
    return this.#bytes;
  }

  get(content: string): Prediction | undefined {
    const entry = this.#entries.get(content);
    if (entry === undefined) return undefined;
    this.#entries.delete(content);
    this.#entries.set(content, entry);
    return entry.prediction;
  }

  put(content: string, prediction: Prediction): void {
    if (prediction.degraded) return;
    let bytes = ENTRY_BYTES + content.length;
    for (const { data } of prediction.outputs) bytes += data.byteLength;
    if (bytes > this.#bytesMax) return;
    this.#drop(content);
    this.#entries.set(content, { prediction, bytes });
    this.#bytes += bytes;
    for (const oldest of this.#entries.keys()) {
      if (this.#bytes <= this.#bytesMax) return;
      this.#drop(oldest);
    }
  }

  #drop(content: string): void {
    this.#bytes -= this.#entries.get(content)?.bytes ?? 0;
    this.#entries.delete(content);
  }
}

/** Rows as a string that only equal rows have: a character a byte. */
export function contentOf({ rowCount, keys, dense, ends }: KeyedRows): string {
  const parts = [latin1(keys), latin1(dense), ends === undefined ? '' : latin1(ends)];
  return `${rowCount} ${keys.length} ${dense.length} ${parts.join('')}`;
}

function latin1({ buffer, byteOffset, byteLength }: Uint32Array | Float32Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString('latin1');
}
