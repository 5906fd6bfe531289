/**
 * A Paddle CTR model through the whole chain: pruned and converted, built, published, served from
 * the embedded store. The served scores are those of the reference interpreter on the unpruned
 * program.
 */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { RowHasher } from '../../lib/core/hash.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { readTrainedFeatures } from '../../lib/core/slots.ts';
import { parseTsvRows } from '../../lib/core/tsv-rows.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import { Processes } from '../../tools/demo/processes.ts';
import { RandomNumbers } from '../../tools/prune-model/cut/verification.ts';
import { Interpreter } from '../../tools/prune-model/paddle/interpreter.ts';
import { findPaddleLookups } from '../../tools/prune-model/paddle/lookup-finder.ts';
import { ParameterValues } from '../../tools/prune-model/paddle/parameter-values.ts';
import { Parameters } from '../../tools/prune-model/paddle/parameters.ts';
import { ProgramGraph } from '../../tools/prune-model/paddle/program-graph.ts';
import { readProgram } from '../../tools/prune-model/paddle/program-reader.ts';
import { SampledTableRows } from '../../tools/prune-model/paddle/table-rows.ts';
import type { Tensor } from '../../tools/prune-model/paddle/tensor.ts';
import { buildCtrDnn } from '../tools/prune-model/support/ctr-programs.ts';
import { writeModel } from '../tools/prune-model/support/paddle-builder.ts';

const BUNDLE = 'paddle-ctr';
const SLOTS = 26;
const DENSE = 13;
const ROWS = 1009;
const ROW_COUNT = 100;

const folder = mkdtempSync(join(tmpdir(), 'hypercube-paddle-'));
mkdirSync(join(folder, 'logs'));
const processes = new Processes(join(folder, 'logs'));
after(async () => {
  await processes.stopAll();
  rmSync(folder, { recursive: true, force: true });
});

const range = (count: number): number[] => Array.from({ length: count }, (_, i) => i);

/** The features as a training script writes them. */
const features = {
  format: 1,
  hash: { scheme: 'xxh64-concat', seed: '0', modulo: String(ROWS) },
  slots: range(SLOTS).map((i) => ({ name: `C${i + 1}`, index: i + 14 })),
  dense: {
    input: 'dense_input',
    features: range(DENSE).map((i) => ({ name: `I${i + 1}`, log: true, shift: 1, scale: 0.5 })),
  },
  click: { output: 'fc_3.tmp_2', column: 1 },
  ids: range(SLOTS).map((i) => ({ input: `C${i + 1}`, slots: [`C${i + 1}`] })),
};

function rowsOfText(): string[] {
  const random = new RandomNumbers(5);
  return range(ROW_COUNT).map(() => {
    const dense = range(DENSE).map(() => Math.floor(random.next() * 50));
    const sparse = range(SLOTS).map(() => Math.floor(random.next() * 2 ** 31).toString(16));
    return [0, ...dense, ...sparse].join('\t');
  });
}

/** The unpruned program on the same rows. */
function expectedScores(model: string, bytes: Uint8Array, lines: readonly string[]): number[] {
  const spec = readTrainedFeatures(JsonReader.parse(JSON.stringify(features), 'features.json'));
  const columns = parseTsvRows(lines.join('\n'), spec, ROW_COUNT);
  const keys = new Uint32Array(2 * ROW_COUNT * SLOTS);
  new RowHasher(spec.hash, spec.slots).hashRows(columns.features, ROW_COUNT, keys);
  const lod = range(ROW_COUNT + 1);
  const feeds = new Map<string, Tensor>([
    ['dense_input', { dtype: 'float32', dims: [ROW_COUNT, DENSE], data: columns.dense }],
    ...range(SLOTS).map((slot): [string, Tensor] => {
      const data = Float64Array.from(range(ROW_COUNT), (row) => keys[2 * (row * SLOTS + slot)]!);
      return [`C${slot + 1}`, { dtype: 'int64', dims: [ROW_COUNT, 1], data, lod }];
    }),
  ]);
  const program = readProgram(bytes, model);
  const graph = new ProgramGraph(program, []);
  const parameters = new Parameters(model, program, {});
  const lookups = findPaddleLookups(graph, parameters);
  const random = new RandomNumbers(1);
  const rows = new Map(lookups.map(({ table }) => [table, new SampledTableRows(table, random)]));
  const values = new ParameterValues({ graph, parameters, lookups }, rows);
  const { data } = new Interpreter(graph, values).run(feeds).get('fc_3.tmp_2')!;
  return range(ROW_COUNT).map((row) => data[2 * row + 1]!);
}

/** Prunes, builds, publishes and serves the model in `folder`. @returns the address of serving */
async function serveModel(): Promise<string> {
  writeFileSync(join(folder, 'features.json'), JSON.stringify(features));
  const [pruned, repository] = [join(folder, 'pruned'), join(folder, 'repository')];
  await processes.run(
    'tools/prune-model/main.js',
    toArguments({
      model: join(folder, 'model'),
      features: join(folder, 'features.json'),
      output: pruned,
      to: 'onnx',
    }),
  );
  await processes.run(
    'tools/cube-builder/main.js',
    toArguments({
      input: pruned,
      outputPath: repository,
      bundle: BUNDLE,
      shardNum: 2,
      curVersion: 1,
    }),
  );
  const channel = { repository, bundle: BUNDLE, channel: 'stable' };
  await processes.run('cube-agent/main.js', [
    'activate',
    ...toArguments({ ...channel, version: 1, reason: 'test' }),
  ]);
  const { address } = await processes.start(
    'serving',
    'serving/main.js',
    toArguments({
      ...channel,
      port: 0,
      pollMs: 100,
      store: 'local',
      dataDir: join(folder, 'local'),
    }),
  );
  return address;
}

test('a Paddle CTR model served by onnxruntime gives the scores of Paddle', async () => {
  const files = buildCtrDnn({ slots: SLOTS, rows: ROWS, dim: 10, hidden: [40, 40, 40], style: 1 });
  const model = writeModel(join(folder, 'model'), files);
  const address = await serveModel();
  const lines = rowsOfText();
  let response: Response | undefined;
  for (let attempt = 0; attempt < 1_200 && response?.ok !== true; attempt++) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    response = await fetch(`http://${address}/v1/ctr:predict`, {
      method: 'POST',
      headers: { 'content-type': 'text/tab-separated-values' },
      body: lines.join('\n'),
    });
  }
  const answer = (await response!.json()) as { probabilities: number[]; unseen: number };
  assert.equal(response!.status, 200, JSON.stringify(answer));
  const expected = expectedScores(model, files.program, lines);
  assert.equal(answer.probabilities.length, ROW_COUNT);
  assert.equal(answer.unseen, 0);
  assert.ok(new Set(answer.probabilities).size > 50, 'the scores differ from one another');
  answer.probabilities.forEach((probability, row) => {
    assert.ok(Math.abs(probability - expected[row]!) <= 1e-5, `row ${row}`);
  });
});
