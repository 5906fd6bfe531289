/**
 * The thread that reads layer files into memories, so that a load never blocks lookups. It responds
 * to every request, also with errors, and ends on a stop message.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError } from '../core/errors.ts';
import { createKernels } from '../core/kernels/kernels.ts';
import { BLOCK_BYTES, HEADER_BYTES } from '../core/layer-format.ts';
import type { SealedHeader } from '../core/sealed-format.ts';
import { systemClock } from '../platform/clock.ts';
import { lowerThreadPriority, runWhenIdle } from '../platform/machine.ts';
import { type ByteReader, openMaybeSealed, SealedReader } from '../platform/sealed-file.ts';
import { BackgroundFill } from './background-fill.ts';
import { BlockHasher } from './block-hasher.ts';
import { buildFilter } from './key-filter.ts';
import { createBlockMismatchError, readChecksums, readHeader } from './layer-reader.ts';
import { LoadProgress } from './load-progress.ts';
import type {
  FillRequest,
  FillResult,
  InspectRequest,
  LayerInspection,
  LoadWorkerData,
  LoadWorkerMessage,
  LoadWorkerResponse,
  SealedInspection,
} from './load-worker-protocol.ts';
import type { PlacedSection } from './section-placement.ts';

/** Shorter pauses are not worth a timer. */
const PAUSE_MS_MIN = 5;
/** Blocks read between two yields to incoming messages: about ten milliseconds of reading. */
const BLOCKS_PER_YIELD = 16;

/** Ends an inspection of a sealed file without its key. */
class KeyNeeded extends Error {
  readonly header: SealedHeader;

  constructor(header: SealedHeader) {
    super('the file is sealed');
    this.header = header;
  }
}

function openFile({ path, descriptor, dataKey }: InspectRequest | FillRequest): ByteReader {
  const getDataKey = (header: SealedHeader): Uint8Array => {
    if (dataKey === undefined) throw new KeyNeeded(header);
    return dataKey;
  };
  return openMaybeSealed(path, getDataKey, descriptor);
}

function inspect(request: InspectRequest): LayerInspection | SealedInspection {
  let reader: ByteReader;
  try {
    reader = openFile(request);
  } catch (error) {
    if (error instanceof KeyNeeded) return { sealed: error.header };
    throw error;
  }
  try {
    const header = readHeader(reader);
    const checksums = readChecksums(reader, header);
    // The reader overwrites its own copy.
    return { header, checksums, dataKey: undefined };
  } finally {
    reader.close();
  }
}

/**
 * One per thread is enough: a block is filled without yielding. A dropped memory would stay in RSS.
 */
const edgeHasher = new BlockHasher();

interface FillTarget {
  readonly bytes: Uint8Array;
  readonly hash: (at: number, length: number) => Uint32Array;
}

/** Reads blocks to their targets; a block of only one section goes straight into memory. */
class SectionFiller {
  readonly #request: FillRequest;
  readonly #reader: ByteReader;
  /** Sealed blocks are authenticated when they are opened. */
  readonly #isVerified: boolean;
  readonly #checksums: Uint32Array;
  readonly #targets: readonly FillTarget[];

  constructor(request: FillRequest, reader: ByteReader) {
    this.#request = request;
    this.#reader = reader;
    this.#isVerified = reader instanceof SealedReader;
    this.#checksums = this.#isVerified ? new Uint32Array(0) : readChecksums(reader, request.header);
    this.#targets = request.memories.map((memory) => {
      const kernels = createKernels(memory, request.kernelKind);
      const hashed = new Uint32Array(memory.buffer, request.hashAddress, 2);
      const hash = (at: number, length: number): Uint32Array => {
        kernels.xxh64(at, length, 0, 0, request.hashAddress);
        return hashed;
      };
      return { bytes: new Uint8Array(memory.buffer), hash };
    });
  }

  /**
   * @param block of the layer; of a sealed file, which is opened by its own blocks, one of those
   * @returns the bytes read; 0 when no section overlaps the block
   */
  fillBlock(block: number): number {
    const { header, sections } = this.#request;
    const start = block * BLOCK_BYTES;
    const position = this.#isVerified ? start : HEADER_BYTES + start;
    const length = Math.min(BLOCK_BYTES, header.checksumsOffset - position);
    const end = position + length;
    const whole = sections.find(({ offset, bytes }) => position >= offset && end <= offset + bytes);
    if (whole !== undefined) {
      const target = this.#targets[whole.memory]!;
      const at = whole.address + position - whole.offset;
      this.#reader.readInto(target.bytes.subarray(at, at + length), position);
      if (!this.#isVerified) this.#check(block, target.hash(at, length));
      return length;
    }
    const touched = sections.filter(
      ({ offset, bytes }) => offset < end && position < offset + bytes,
    );
    if (touched.length === 0) return 0;
    this.#fillEdge(block, position, length, touched);
    return end - Math.max(position, HEADER_BYTES);
  }

  /** Reads and verifies a block with a section boundary in a buffer, then copies its parts. */
  #fillEdge(
    block: number,
    position: number,
    length: number,
    sections: readonly PlacedSection[],
  ): void {
    this.#reader.readInto(edgeHasher.block.subarray(0, length), position);
    if (!this.#isVerified) this.#check(block, edgeHasher.hash(length));
    for (const { offset, bytes, memory, address } of sections) {
      const from = Math.max(offset, position);
      const to = Math.min(offset + bytes, position + length);
      const piece = edgeHasher.block.subarray(from - position, to - position);
      this.#targets[memory]!.bytes.set(piece, address + from - offset);
    }
  }

  #check(block: number, hash: Uint32Array): void {
    const checksums = this.#checksums;
    if (hash[0] === checksums[2 * block] && hash[1] === checksums[2 * block + 1]) return;
    throw createBlockMismatchError(this.#request.path, block);
  }
}

const stopping = new AbortController();
const inProgress = new Set<Promise<void>>();

async function fill(request: FillRequest): Promise<FillResult> {
  const { header, path, bytesPerSecond } = request;
  const progress = request.progress && new LoadProgress(request.progress);
  const background = request.handOver && new BackgroundFill(request.handOver);
  const reader = openFile(request);
  try {
    const filler = new SectionFiller(request, reader);
    const startMs = systemClock.nowMs();
    let filled = 0;
    const { first, end } = request.blocks;
    for (let block = first; block < end; block++) {
      if (background?.isHandedOver) return { filter: undefined, next: block };
      if (stopping.signal.aborted) throw new CubeError('STOPPING', `${path}: the load was stopped`);
      const bytes = filler.fillBlock(block);
      filled += bytes;
      progress?.add(bytes, request.part);
      background?.addBlock();
      // Lets a stop message be received.
      if (block % BLOCKS_PER_YIELD === 0) await new Promise((resolve) => setImmediate(resolve));
      const aheadMs = (filled / bytesPerSecond) * 1000 - (systemClock.nowMs() - startMs);
      if (aheadMs >= PAUSE_MS_MIN) await systemClock.sleep(aheadMs, stopping.signal);
    }
    if (header.kind === 'base') return { filter: undefined, next: end };
    const buffers = request.memories.map(({ buffer }) => buffer);
    return { filter: buildFilter(header, request.sections, buffers), next: end };
  } finally {
    reader.close();
  }
}

async function handleRequest(message: InspectRequest | FillRequest): Promise<LoadWorkerResponse> {
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
if ((workerData as LoadWorkerData).whenIdle) void runWhenIdle();
else lowerThreadPriority();
port.on('message', async (message: LoadWorkerMessage) => {
  if (message.type === 'stop') {
    stopping.abort();
    await Promise.all(inProgress);
    port.close();
    return;
  }
  const work = handleRequest(message).then((result) => port.postMessage(result));
  inProgress.add(work);
  await work;
  inProgress.delete(work);
});
