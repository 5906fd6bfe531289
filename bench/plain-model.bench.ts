/**
 * A plain model in the engine against bare onnxruntime in the same process: batches of 64 rows of a
 * network with two hidden layers. CPU time of all threads for each batch, the median of several
 * alternating runs; the ratio is bare over served. Run it with `npm run bench -- plain-model`.
 */
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

const RUNS = 5;
const BATCHES = 400;
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

/** @returns CPU and wall-clock microseconds for each batch */
async function measure(run: () => Promise<unknown>): Promise<{ cpu: number; wall: number }> {
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
  const figures: Awaited<ReturnType<typeof measure>>[][] = [[], []];
  for (let run = 0; run <= RUNS; run++) {
    for (const [i, action] of [runBare, runServed].entries()) {
      const figure = await measure(action);
      // The first run warms up.
      if (run > 0) figures[i]?.push(figure);
    }
  }
  const [bareCpu = 0, servedCpu = 0] = figures.map((runs) =>
    findMedian(runs.map(({ cpu }) => cpu)),
  );
  const [bareWall = 0, servedWall = 0] = figures.map((runs) =>
    findMedian(runs.map(({ wall }) => wall)),
  );
  const show = (bareUs: number, servedUs: number): string =>
    `bare ${bareUs.toFixed(0)} µs, served ${servedUs.toFixed(0)} µs, ` +
    `ratio ${(bareUs / servedUs).toFixed(2)}`;
  process.stdout.write(
    `${input} → ${hidden} → ${hidden} → 1, batch ${ROWS}: CPU ${show(bareCpu, servedCpu)}; ` +
      `wall ${show(bareWall, servedWall)}\n`,
  );
  await served.close();
  await bare.release();
}

for (const hidden of WIDTHS) await compare(256, hidden);
