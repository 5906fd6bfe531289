/**
 * A pool of output buffers, which are written to a socket and return once the kernel has accepted
 * their bytes. It keeps a bounded number of buffers, and none that has grown large.
 */
import { OutputBuffer } from '../../proto/output-buffer.ts';

const BUFFER_BYTES = 64 << 10;
const POOLED_BUFFER_BYTES_MAX = 1 << 20;
const POOLED_BUFFERS_MAX = 64;

export class BufferPool {
  readonly #free: OutputBuffer[] = [];

  acquire(): OutputBuffer {
    return this.#free.pop() ?? new OutputBuffer(BUFFER_BYTES, Buffer.allocUnsafeSlow);
  }

  release(buffer: OutputBuffer): void {
    if (buffer.bytes.length > POOLED_BUFFER_BYTES_MAX || this.#free.length >= POOLED_BUFFERS_MAX)
      return;
    buffer.truncate(0);
    this.#free.push(buffer);
  }
}
