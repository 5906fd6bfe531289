/**
 * The open streams of an HTTP/2 session, in place of the Map that Node makes for each session:
 * streams come and go in it with each call, so it keeps ended streams, and all that they refer to,
 * alive for long (lib/core/live-list.ts says why).
 */
import type { Http2Session } from 'node:http2';
import { isMap } from 'node:util/types';

type Fields = Record<symbol, { streams?: unknown } | undefined>;

/** The methods of a Map that Node uses. */
class StreamTable<T> {
  readonly #streams: Record<number, T> = {};
  #size = 0;

  get size(): number {
    return this.#size;
  }

  has(id: number): boolean {
    return this.#streams[id] !== undefined;
  }

  get(id: number): T | undefined {
    return this.#streams[id];
  }

  set(id: number, stream: T): this {
    if (!this.has(id)) this.#size++;
    this.#streams[id] = stream;
    return this;
  }

  delete(id: number): boolean {
    if (!this.has(id)) return false;
    this.#size--;
    delete this.#streams[id];
    return true;
  }

  forEach(visit: (stream: T, id: number) => void): void {
    for (const id of Object.keys(this.#streams).map(Number)) {
      const stream = this.#streams[id];
      if (stream !== undefined) visit(stream, id);
    }
  }
}

/**
 * Call before the first stream. @returns false when this version of Node keeps its streams
 * elsewhere; then nothing has changed
 */
export function replaceStreamMap(session: Http2Session): boolean {
  const fields = session as unknown as Fields;
  for (const symbol of Object.getOwnPropertySymbols(session)) {
    const state = symbol.description === 'state' ? fields[symbol] : undefined;
    // Node's class of Map is not `instanceof Map`.
    if (!isMap(state?.streams) || state.streams.size > 0) continue;
    state.streams = new StreamTable();
    return true;
  }
  return false;
}
