/**
 * The thread that reads layer files into memories, so that a load never blocks lookups. It answers every request, an
 * error included, and ends when told to.
 */
import { parentPort } from 'node:worker_threads';
import { CubeError } from '../core/errors.ts';
import { createKernels } from '../core/kernels/kernels.ts';
import { BLOCK_BYTES, HEADER_BYTES } from '../core/layer-format.ts';
import { systemClock } from '../platform/clock.ts';
import { RandomReader } from '../platform/files.ts';
import { runInBackground } from '../platform/thread-priority.ts';
import { BlockHasher } from './block-hasher.ts';
import { filterOf } from './key-filter.ts';
import { blockMismatch, readChecksums, readHeader } from './layer-reader.ts';
import type {
  FillRequest,
  InspectRequest,
  LayerFilling,
  LayerInspection,
  LoadAnswer,
  LoadMessage,
} from './load-protocol.ts';
import type { PlacedSection } from './section-placement.ts';

/** Shorter pauses are not worth a timer. */
const PAUSE_MS_MIN = 5;
/** Blocks between two looks at what the store has to say: about ten milliseconds of reading. */
const BLOCKS_BETWEEN_LOOKS = 16;

function inspect({ path, descriptor }: InspectRequest): LayerInspection {
  const reader = new RandomReader(path, descriptor);
  try {
    const header = readHeader(reader);
    return { header, checksums: readChecksums(reader, header) };
  } finally {
    reader.close();
  }
}

/** One for the thread: fills do not yield within a block, and a dropped memory would stay in RSS. */
const edge = new BlockHasher();

interface Target {
  readonly bytes: Uint8Array;
  readonly hash: (at: number, length: number) => Uint32Array;
}

/** Reads blocks to where they belong: straight into a memory when the whole block is of one section. */
class SectionFiller {
  readonly #request: FillRequest;
  readonly #reader: RandomReader;
  readonly #checksums: Uint32Array;
  readonly #targets: readonly Target[];

  constructor(request: FillRequest, reader: RandomReader) {
    this.#request = request;
    this.#reader = reader;
    this.#checksums = readChecksums(reader, request.header);
    this.#targets = request.memories.map((memory) => {
      const kernels = createKernels(memory, request.kernelKind);
      const hashed = new Uint32Array(memory.buffer, request.hashAt, 2);
      const hash = (at: number, length: number): Uint32Array => {
        kernels.xxh64(at, length, 0, 0, request.hashAt);
        return hashed;
      };
      return { bytes: new Uint8Array(memory.buffer), hash };
    });
  }

  /** @returns the bytes read: 0 when no section has any of the block */
  fillBlock(block: number): number {
    const { header, sections } = this.#request;
    const position = HEADER_BYTES + block * BLOCK_BYTES;
    const length = Math.min(BLOCK_BYTES, header.checksumsOffset - position);
    const end = position + length;
    const whole = sections.find(({ offset, bytes }) => position >= offset && end <= offset + bytes);
    if (whole !== undefined) {
      const target = this.#targets[whole.memory]!;
      const at = whole.address + position - whole.offset;
      this.#reader.readInto(target.bytes.subarray(at, at + length), position);
      this.#check(block, target.hash(at, length));
      return length;
    }
    const touched = sections.filter(
      ({ offset, bytes }) => offset < end && position < offset + bytes,
    );
    if (touched.length === 0) return 0;
    this.#fillEdge(block, position, length, touched);
    return length;
  }

  /** A block with the end of a section in it: read aside, checked, and dealt out. */
  #fillEdge(
    block: number,
    position: number,
    length: number,
    sections: readonly PlacedSection[],
  ): void {
    this.#reader.readInto(edge.block.subarray(0, length), position);
    this.#check(block, edge.hash(length));
    for (const { offset, bytes, memory, address } of sections) {
      const from = Math.max(offset, position);
      const to = Math.min(offset + bytes, position + length);
      const piece = edge.block.subarray(from - position, to - position);
      this.#targets[memory]!.bytes.set(piece, address + from - offset);
    }
  }

  #check(block: number, hash: Uint32Array): void {
    const checksums = this.#checksums;
    if (hash[0] === checksums[2 * block] && hash[1] === checksums[2 * block + 1]) return;
    throw blockMismatch(this.#request.path, block);
  }
}

const stopping = new AbortController();
const underWay = new Set<Promise<void>>();

async function fill(request: FillRequest): Promise<LayerFilling> {
  const { header, path, descriptor, bytesPerSecond } = request;
  const reader = new RandomReader(path, descriptor);
  try {
    const filler = new SectionFiller(request, reader);
    const startMs = systemClock.nowMs();
    let filled = 0;
    for (let block = 0; block < header.blockCount; block++) {
      if (stopping.signal.aborted) throw new CubeError('STOPPING', `${path}: the load was stopped`);
      filled += filler.fillBlock(block);
      // A thread that only reads would not hear that it shall stop.
      if (block % BLOCKS_BETWEEN_LOOKS === 0) await new Promise((resolve) => setImmediate(resolve));
      const aheadMs = (filled / bytesPerSecond) * 1000 - (systemClock.nowMs() - startMs);
      if (aheadMs >= PAUSE_MS_MIN) await systemClock.sleep(aheadMs, stopping.signal);
    }
    if (header.kind === 'base') return { filter: undefined };
    const buffers = request.memories.map(({ buffer }) => buffer);
    return { filter: filterOf(header, request.sections, buffers) };
  } finally {
    reader.close();
  }
}

async function answer(message: InspectRequest | FillRequest): Promise<LoadAnswer> {
  const { id } = message;
  try {
    const result = message.type === 'inspect' ? inspect(message) : await fill(message);
    return { id, ok: true, result };
  } catch (error) {
    const { code, message: text } = CubeError.from(error);
    return { id, ok: false, code, message: text };
  }
}

const port = parentPort;
if (port === null) throw new Error('load-worker.ts runs as a worker thread');
runInBackground();
port.on('message', async (message: LoadMessage) => {
  if (message.type === 'stop') {
    stopping.abort();
    await Promise.all(underWay);
    port.close();
    return;
  }
  const work = answer(message).then((result) => port.postMessage(result));
  underWay.add(work);
  await work;
  underWay.delete(work);
});
