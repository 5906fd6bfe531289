/**
 * Pipelines: in one process the engine alone on graphs of empty ops, an op with a local predictor
 * against the model itself, two models in parallel against in sequence; then a serving process with
 * a pipeline against its protocols without one. The median of several alternating runs. Run it with
 * `npm run bench -- pipeline`.
 */
import { createLogger } from '../lib/platform/logs.ts';
import { DEFAULT_BATCHING } from '../serving/engine/engine-options.ts';
import { LoadedGraph } from '../serving/engine/loaded-graph.ts';
import { Predictor } from '../serving/engine/predictor.ts';
import { LocalPredictor } from '../serving/pipeline/local-predictor.ts';
import {
  type AnyOp,
  Op,
  type OpInputs,
  type OpValues,
  RequestOp,
  ResponseOp,
} from '../serving/pipeline/op.ts';
import { type PipelineTensor, toByteTensor } from '../serving/pipeline/pipeline-tensor.ts';
import { PipelineServer } from '../serving/pipeline/server.ts';
import {
  FLOAT,
  floats,
  model,
  node,
  ramp,
  value,
} from '../test/tools/prune-model/support/onnx-builder.ts';
import { printPipelineServing } from './support/pipeline-serving.ts';

const RUNS = 7;
/** For each action: V8 compiles the hot code of an engine within a second. */
const WARM_MS = 1_500;
const WIDTH = 256;
const logger = createLogger('bench', { level: 'silent' });

/** Joins its predecessors, where it has several. */
class EmptyOp extends Op {
  override preprocess(inputs: OpInputs): OpValues {
    return Object.values(inputs)[0] ?? {};
  }
}

function createChain(length: number): PipelineServer {
  let last: AnyOp = new RequestOp();
  for (let at = 0; at < length; at++) last = new EmptyOp({ name: `op${at}`, inputs: [last] });
  return new PipelineServer(new ResponseOp({ inputs: [last] }));
}

/** Request → 4 ops in parallel → join → filter. */
function createSixOps(): PipelineServer {
  const request = new RequestOp();
  const parts = [0, 1, 2, 3].map((at) => new EmptyOp({ name: `part${at}`, inputs: [request] }));
  const join = new EmptyOp({ name: 'join', inputs: parts });
  const filter = new EmptyOp({ name: 'filter', inputs: [join] });
  return new PipelineServer(new ResponseOp({ inputs: [filter] }));
}

interface Figure {
  readonly cpu: number;
  readonly wall: number;
}

/** @returns microseconds for each request */
async function measure(count: number, callers: number, run: () => Promise<unknown>) {
  const startMs = performance.now();
  const start = process.cpuUsage();
  const call = async (): Promise<void> => {
    for (let i = 0; i < count / callers; i++) await run();
  };
  await Promise.all(Array.from({ length: callers }, call));
  const { user, system } = process.cpuUsage(start);
  return { cpu: (user + system) / count, wall: (1_000 * (performance.now() - startMs)) / count };
}

/** @returns the median of each action, whose runs alternate after a warm-up */
async function compare(
  count: number,
  callers: number,
  actions: readonly (() => Promise<unknown>)[],
): Promise<Figure[]> {
  const figures: Figure[][] = actions.map(() => []);
  for (const action of actions) {
    const endMs = performance.now() + WARM_MS;
    while (performance.now() < endMs) await measure(count, callers, action);
  }
  for (let run = 0; run < RUNS; run++) {
    for (const [at, action] of actions.entries()) {
      figures[at]?.push(await measure(count, callers, action));
    }
  }
  const median = (values: number[]): number =>
    values.sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
  return figures.map((runs) => ({
    cpu: median(runs.map(({ cpu }) => cpu)),
    wall: median(runs.map(({ wall }) => wall)),
  }));
}

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

async function measureEngine(): Promise<void> {
  const lengths = [1, 6, 24, 96];
  const servers = [createSixOps(), ...lengths.map(createChain)];
  for (const server of servers) await server.start();
  const values = { x: 1 };
  const actions = servers.map((server) => () => server.run({ values }));
  const [graph, ...chains] = await compare(5_000, 16, actions);
  print(`graph of 6 empty ops: ${graph?.cpu.toFixed(1)} µs CPU a request`);
  for (const [at, length] of lengths.entries()) {
    const cpu = chains[at]?.cpu ?? Number.NaN;
    print(`chain of ${length} empty ops: ${cpu.toFixed(1)} µs, ${(cpu / length).toFixed(2)} an op`);
  }
  for (const server of servers) await server.stop();
}

function createNetwork(hidden: number): Uint8Array {
  const weights = (name: string, rows: number, columns: number): Uint8Array =>
    floats(name, [rows, columns], ramp(rows * columns, 0.1));
  return model({
    inputs: [value('x', FLOAT, ['batch', WIDTH])],
    outputs: [value('y', FLOAT, ['batch', 1])],
    initializers: [
      weights('a', WIDTH, hidden),
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

async function loadNetwork(name: string, hidden: number): Promise<LoadedGraph> {
  const batching = { ...DEFAULT_BATCHING, maxBatch: 64 };
  const bytes = createNetwork(hidden);
  return LoadedGraph.load({ name, version: '1', model: bytes, instances: 1, batching, logger });
}

function createClient(loaded: LoadedGraph): LocalPredictor {
  return new LocalPredictor({
    models: { find: () => loaded },
    model: loaded.name,
    predictor: new Predictor(),
    readRows: () => {
      throw new Error('no rows');
    },
  });
}

async function measureLocalPredictor(rows: number, callers: number): Promise<void> {
  const loaded = await loadNetwork('mlp', 256);
  const data = Float32Array.from(ramp(rows * WIDTH));
  const x = { dataType: 'FP32', shape: [rows, WIDTH], data } as const;
  const tensor = { name: 'x', ...toByteTensor(x) };
  const request = new RequestOp();
  const client = createClient(loaded);
  const op = new Op({ name: 'rank', inputs: [request], client, concurrency: callers });
  const server = new PipelineServer(new ResponseOp({ inputs: [op] }));
  await server.start();
  const count = rows === 1 ? 4_000 : 400;
  const [direct, pipeline] = await compare(count, callers, [
    () =>
      loaded.predict({ inputs: [tensor], outputs: [] }, { deadlineMs: performance.now() + 60_000 }),
    () => server.run({ values: { x } }),
  ]);
  const ratio = (direct?.cpu ?? Number.NaN) / (pipeline?.cpu ?? Number.NaN);
  print(
    `${rows} rows, ${callers} in flight: model ${direct?.cpu.toFixed(0)} µs CPU, pipeline ` +
      `${pipeline?.cpu.toFixed(0)} µs, ratio ${ratio.toFixed(2)}`,
  );
  await server.stop();
  await loaded.close();
}

async function measureTwoModels(): Promise<void> {
  const models = [await loadNetwork('a', 1024), await loadNetwork('b', 1024)];
  const clients = models.map(createClient);
  const x = { dataType: 'FP32', shape: [64, WIDTH], data: Float32Array.from(ramp(64 * WIDTH)) };
  const create = (isParallel: boolean): PipelineServer => {
    const request = new RequestOp();
    class PassOn extends EmptyOp {
      override postprocess(inputs: OpInputs): OpValues {
        return Object.values(inputs)[0] ?? {};
      }
    }
    const first = new PassOn({ name: 'a', inputs: [request], client: clients[0] as never });
    const inputs = [isParallel ? request : first];
    const second = new PassOn({ name: 'b', inputs, client: clients[1] as never });
    const join = new EmptyOp({ name: 'join', inputs: isParallel ? [first, second] : [second] });
    return new PipelineServer(new ResponseOp({ inputs: [join] }));
  };
  const servers = [create(false), create(true)];
  for (const server of servers) await server.start();
  const tensor = { name: 'x', ...toByteTensor(x as PipelineTensor) };
  const [a, b] = models.map((loaded) => () => {
    const options = { deadlineMs: performance.now() + 60_000 };
    return loaded.predict({ inputs: [tensor], outputs: [] }, options);
  }) as [() => Promise<unknown>, () => Promise<unknown>];
  const figures = await compare(100, 1, [
    ...servers.map((server) => () => server.run({ values: { x } })),
    async () => {
      await a();
      await b();
    },
    () => Promise.all([a(), b()]),
  ]);
  const [sequence = Number.NaN, parallel = Number.NaN, one = Number.NaN, both = Number.NaN] =
    figures.map(({ wall }) => wall);
  print(
    `two models: in sequence ${sequence.toFixed(0)} µs, in parallel ${parallel.toFixed(0)} µs ` +
      `wall clock, ratio ${(sequence / parallel).toFixed(2)}; the models without a pipeline: ` +
      `${one.toFixed(0)} µs, ${both.toFixed(0)} µs, ratio ${(one / both).toFixed(2)}`,
  );
  for (const server of servers) await server.stop();
  for (const loaded of models) await loaded.close();
}

await measureEngine();
await measureLocalPredictor(64, 2);
await measureLocalPredictor(1, 64);
await measureTwoModels();
await printPipelineServing();
