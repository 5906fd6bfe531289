/** Prepares values for `postMessage`: what is copied, and what moves to the other thread. */
import { PIPELINE_ERROR } from '../../proto/pipeline.ts';
import { Stopped } from './stopped.ts';

/** Smaller arrays are copied: moving one costs as much. */
const MOVED_BYTES_MIN = 4096;
const DEPTH_MAX = 16;

/**
 * Replaces views of larger buffers by copies, because a message contains whole buffers.
 * @param moved receives the buffers that may move; undefined: all are copied
 */
export function prepareValues<T>(values: T, moved?: Set<ArrayBuffer>): T {
  return prepare(values, moved, 0) as T;
}

function prepare(value: unknown, moved: Set<ArrayBuffer> | undefined, depth: number): unknown {
  if (typeof value !== 'object' || value === null || depth > DEPTH_MAX) return value;
  if (ArrayBuffer.isView(value)) return prepareView(value, moved);
  if (Array.isArray(value)) return prepareList(value, moved, depth);
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) return value;
  let copy: Record<string, unknown> | undefined;
  for (const [name, part] of Object.entries(value)) {
    const prepared = prepare(part, moved, depth + 1);
    if (prepared === part) continue;
    copy ??= { ...value };
    copy[name] = prepared;
  }
  return copy ?? value;
}

function prepareList(
  list: readonly unknown[],
  moved: Set<ArrayBuffer> | undefined,
  depth: number,
): readonly unknown[] {
  // Lists of numbers or texts are long, and have nothing to prepare.
  if (typeof list[0] !== 'object') return list;
  return list.map((item) => prepare(item, moved, depth + 1));
}

function prepareView(view: ArrayBufferView, moved: Set<ArrayBuffer> | undefined): ArrayBufferView {
  const { buffer, byteLength, byteOffset } = view;
  if (!(buffer instanceof ArrayBuffer)) return view;
  if (byteLength === buffer.byteLength) {
    if (moved !== undefined && byteLength >= MOVED_BYTES_MIN) moved.add(buffer);
    return view;
  }
  if (view instanceof DataView)
    return new DataView(buffer.slice(byteOffset, byteOffset + byteLength));
  // The slice of a Buffer is a view, so Buffers become plain bytes.
  if (view instanceof Uint8Array) return Uint8Array.prototype.slice.call(view);
  const copy = (view as Float32Array).slice();
  if (moved !== undefined && byteLength >= MOVED_BYTES_MIN) moved.add(copy.buffer as ArrayBuffer);
  return copy;
}

/** @returns the reason of a request whose values `postMessage` refuses */
export function toValuesError(op: string, what: string, error: unknown): Stopped {
  const { message } = error as Error;
  return new Stopped(
    PIPELINE_ERROR.TYPE_ERROR,
    `op ${op}: its ${what} cannot be sent between threads (${message}); use text, numbers, ` +
      'arrays and plain objects',
  );
}

/** A `MessagePort`, or a `Worker`. */
interface Port {
  postMessage(message: unknown, transfer?: readonly ArrayBuffer[]): void;
}

/**
 * Posts a message; buffers that cannot move, such as those of WebAssembly, are copied.
 * @throws DataCloneError for values that cannot be copied either
 */
export function postValues(port: Port, message: unknown, moved: ReadonlySet<ArrayBuffer>): void {
  if (moved.size === 0) {
    port.postMessage(message);
    return;
  }
  try {
    port.postMessage(message, [...moved]);
  } catch {
    port.postMessage(message);
  }
}
