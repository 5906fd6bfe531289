/**
 * Output buffers that are written to a socket and come back when the kernel has taken their bytes. Bounded: only
 * so many are kept, and none that grew large.
 */
import { OutputBuffer } from '../../proto/output-buffer.ts';

const BUFFER_BYTES = 64 << 10;
const KEPT_BYTES_MAX = 1 << 20;
const KEPT_COUNT_MAX = 64;

export class BufferPool {
  readonly #free: OutputBuffer[] = [];

  take(): OutputBuffer {
    return this.#free.pop() ?? new OutputBuffer(BUFFER_BYTES, Buffer.allocUnsafeSlow);
  }

  give(buffer: OutputBuffer): void {
    if (buffer.bytes.length > KEPT_BYTES_MAX || this.#free.length >= KEPT_COUNT_MAX) return;
    buffer.truncate(0);
    this.#free.push(buffer);
  }
}
