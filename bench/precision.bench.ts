/**
 * The demo's pruned graph with each precision, in onnxruntime on one thread: CPU time of a run, the
 * median of several alternating rounds, its ratio to fp32, the size of the file, and the largest
 * difference on the sampled inputs of the check. Run it with `npm run bench -- precision`.
 */
import { join } from 'node:path';
import { requireDefined } from '../lib/core/errors.ts';
import { PRECISIONS, type Precision } from '../lib/core/precisions.ts';
import { OnnxModel, type OnnxTensor } from '../lib/platform/onnx.ts';
import { TemporaryFolder } from '../lib/platform/temporary-folder.ts';
import { openRepository } from '../lib/repository/repository.ts';
import { convertAndCheck } from '../serving/engine/precision-check.ts';
import { BUNDLE, publishModel } from './support/demo-model.ts';

const ROUNDS = 7;
const RUNS = 200;
const BATCHES = [64, 1] as const;

interface Candidate {
  readonly precision: Precision;
  readonly model: OnnxModel;
  readonly bytes: number;
  readonly difference: number;
}

async function load(graph: Uint8Array, precision: Precision): Promise<Candidate> {
  const request = { model: graph, data: new Map(), source: 'the demo' };
  const { model, difference } =
    precision === 'fp32'
      ? { model: graph, difference: 0 }
      : await convertAndCheck({ ...request, precision });
  return { precision, model: await OnnxModel.load(model), bytes: model.length, difference };
}

/** The same values for every precision. */
function makeFeeds({ inputs }: OnnxModel, rowCount: number): Record<string, OnnxTensor> {
  const feeds: Record<string, OnnxTensor> = {};
  for (const { name, shape } of inputs) {
    const dims = shape.map((size, i) => (i === 0 ? rowCount : Number(size)));
    const length = dims.reduce((product, size) => product * size, 1);
    const data = Float32Array.from({ length }, (_, i) => Math.sin(i));
    feeds[name] = { dtype: 'float32', data, dims };
  }
  return feeds;
}

/** @returns CPU microseconds of a run */
async function measure(model: OnnxModel, feeds: Record<string, OnnxTensor>): Promise<number> {
  const start = process.cpuUsage();
  for (let i = 0; i < RUNS; i++) await model.run(feeds);
  const { user, system } = process.cpuUsage(start);
  return (user + system) / RUNS;
}

async function compare(candidates: readonly Candidate[], rowCount: number): Promise<void> {
  const times = new Map(candidates.map(({ precision }) => [precision, [] as number[]]));
  for (let round = 0; round <= ROUNDS; round++) {
    for (const { precision, model } of candidates) {
      const micros = await measure(model, makeFeeds(model, rowCount));
      // The first round warms up.
      if (round > 0) times.get(precision)?.push(micros);
    }
  }
  const medians = new Map(
    [...times].map(([precision, all]) => [precision, all.sort((a, b) => a - b)[ROUNDS >> 1] ?? 0]),
  );
  const baseline = requireDefined(medians.get('fp32'), 'fp32');
  for (const { precision, bytes, difference } of candidates) {
    const micros = medians.get(precision) ?? 0;
    process.stdout.write(
      `${rowCount} rows, ${precision}: CPU ${micros.toFixed(0)} µs a run, ` +
        `${(micros / baseline).toFixed(2)} of fp32; ${(bytes / 1e6).toFixed(2)} MB; ` +
        `largest difference ${difference.toPrecision(2)}\n`,
    );
  }
}

const folder = new TemporaryFolder('bench');
try {
  await publishModel(folder.path, 1);
  const repository = openRepository(join(folder.path, 'repo'));
  const graph = await repository.readVersionFile(BUNDLE, '1', 'model.onnx');
  const candidates: Candidate[] = [];
  for (const precision of PRECISIONS) candidates.push(await load(graph, precision));
  for (const rowCount of BATCHES) await compare(candidates, rowCount);
} finally {
  folder.remove();
}
