/**
 * A plain model in the engine against bare onnxruntime: on the main thread, and in a worker that
 * gets and returns one message for a batch. Batches of 64 rows of a network with two hidden layers;
 * CPU time of all threads and wall-clock time for each batch, medians of alternating rounds. A
 * share compares a run with the bare one of the same round, because the machine's speed drifts.
 * Before, V8 gets the time to compile what runs: its compiler threads would count, too. Run it with
 * `npm run bench -- plain-model`.
 */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { createLogger } from '../lib/platform/logs.ts';
import { OnnxModel } from '../lib/platform/onnx.ts';
import { DEFAULT_BATCHING } from '../serving/engine/engine-options.ts';
import { LoadedGraph } from '../serving/engine/loaded-graph.ts';
import {
  FLOAT,
  floats,
  model,
  node,
  ramp,
  value,
} from '../test/tools/prune-model/support/onnx-builder.ts';

import type { BareWorkerData } from './support/bare-worker.ts';

const ROUNDS = 15;
const BATCHES = 200;
/** Batches of each kind before the first round. */
const WARM_UP_BATCHES = 4_000;
const ROWS = 64;
const WIDTHS = [256, 512, 1024] as const;
/** Requests in flight: one runs, one is ready. */
const CALLERS = 2;

/** x [batch, in] → MatMul, Relu, MatMul, Relu, MatMul → y [batch, 1]. */
function createNetwork(input: number, hidden: number): Uint8Array {
  const weights = (name: string, rows: number, columns: number): Uint8Array =>
    floats(name, [rows, columns], ramp(rows * columns, 0.1));
  return model({
    inputs: [value('x', FLOAT, ['batch', input])],
    outputs: [value('y', FLOAT, ['batch', 1])],
    initializers: [
      weights('a', input, hidden),
      weights('b', hidden, hidden),
      weights('c', hidden, 1),
    ],
    nodes: [
      node('MatMul', ['x', 'a'], ['h1']),
      node('Relu', ['h1'], ['r1']),
      node('MatMul', ['r1', 'b'], ['h2']),
      node('Relu', ['h2'], ['r2']),
      node('MatMul', ['r2', 'c'], ['y']),
    ],
  });
}

/** Runs batches in a worker without an engine. */
class BareWorker {
  readonly #worker: Worker;
  readonly #data: Float32Array;
  readonly #buffers: ArrayBuffer[];

  private constructor(worker: Worker, data: Float32Array) {
    this.#worker = worker;
    this.#data = data;
    this.#buffers = Array.from({ length: CALLERS }, () => new ArrayBuffer(data.byteLength));
  }

  static async start(model: Uint8Array, data: Float32Array, dims: readonly number[]) {
    const script = new URL('./support/bare-worker.js', import.meta.url);
    const worker = new Worker(script, { workerData: { model, dims } satisfies BareWorkerData });
    await once(worker, 'message');
    return new BareWorker(worker, data);
  }

  /** Runs as many batches as are in flight at once, again and again. */
  run(): Promise<void> {
    return new Promise((resolve) => {
      let sent = 0;
      let received = 0;
      const send = (buffer: ArrayBuffer): void => {
        sent++;
        new Float32Array(buffer).set(this.#data);
        this.#worker.postMessage(buffer, [buffer]);
      };
      const receive = ({ input }: { readonly input: ArrayBuffer }): void => {
        received++;
        if (sent < BATCHES) send(input);
        else this.#buffers.push(input);
        if (received < BATCHES) return;
        this.#worker.off('message', receive);
        resolve();
      };
      this.#worker.on('message', receive);
      for (const buffer of this.#buffers.splice(0)) send(buffer);
    });
  }

  async stop(): Promise<void> {
    this.#worker.postMessage('stop');
    await once(this.#worker, 'exit');
  }
}

/** Microseconds for each batch. */
interface Figures {
  readonly cpu: number;
  readonly wall: number;
}

async function measure(run: () => Promise<unknown>): Promise<Figures> {
  const startMs = performance.now();
  const start = process.cpuUsage();
  await run();
  const { user, system } = process.cpuUsage(start);
  return {
    cpu: (user + system) / BATCHES,
    wall: (1_000 * (performance.now() - startMs)) / BATCHES,
  };
}

function findMedian(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

async function compare(input: number, hidden: number): Promise<void> {
  const bytes = createNetwork(input, hidden);
  const bare = await OnnxModel.load(bytes);
  const logger = createLogger('bench', { level: 'silent' });
  const batching = { ...DEFAULT_BATCHING, maxBatch: ROWS };
  const options = { name: 'mlp', version: '1', model: bytes, instances: 1, batching, logger };
  const served = await LoadedGraph.load(options);
  const data = Float32Array.from(ramp(ROWS * input));
  const x = { dtype: 'float32', data, dims: [ROWS, input] } as const;
  const raw = new Uint8Array(data.buffer);
  const tensor = { name: 'x', dataType: 'FP32', shape: [ROWS, input], data: raw } as const;
  const runBare = async (): Promise<void> => {
    for (let i = 0; i < BATCHES; i++) await bare.run({ x });
  };
  const call = async (): Promise<void> => {
    for (let i = 0; i < BATCHES / CALLERS; i++) {
      await served.predict(
        { inputs: [tensor], outputs: [] },
        { deadlineMs: performance.now() + 60_000 },
      );
    }
  };
  const runServed = (): Promise<unknown> => Promise.all(Array.from({ length: CALLERS }, call));
  const worker = await BareWorker.start(bytes, data, [ROWS, input]);
  const runInWorker = (): Promise<void> => worker.run();
  const actions = [runBare, runInWorker, runServed];
  for (const action of actions) {
    for (let batches = 0; batches < WARM_UP_BATCHES; batches += BATCHES) await action();
  }
  const rounds: Figures[][] = actions.map(() => []);
  for (let round = 0; round < ROUNDS; round++) {
    for (const [i, action] of actions.entries()) rounds[i]?.push(await measure(action));
  }
  const names = ['bare', 'bare in a worker', 'served'];
  process.stdout.write(`${input} → ${hidden} → ${hidden} → 1, batch ${ROWS}:\n`);
  for (const kind of ['cpu', 'wall'] as const) {
    const figures = rounds.map((runs) => runs.map((run) => run[kind]));
    const texts = figures.map((runs, i) => {
      const shares = runs.map((micros, round) => (figures[0]?.[round] ?? Number.NaN) / micros);
      const share = i === 0 ? '' : ` (${(100 * findMedian(shares)).toFixed(0)} %)`;
      return `${names[i]} ${findMedian(runs).toFixed(0)} µs${share}`;
    });
    process.stdout.write(`  ${kind.padEnd(4)} ${texts.join(', ')}\n`);
  }
  await served.close();
  await worker.stop();
  await bare.release();
}

for (const hidden of WIDTHS) await compare(256, hidden);
