/** Runs the commands of docs/wire against a similar model; only address and model name differ. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { openRepository } from '../../lib/repository/repository.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import {
  FLOAT,
  floats,
  INT64,
  ints,
  model,
  node,
  ramp,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';
import { BUNDLE, publishModel } from './support/served-model.ts';
import { ServingProcess } from './support/serving-process.ts';

const PAGES = fileURLToPath(new URL('../../../docs/wire/', import.meta.url));
const WIDTH = 2 * 3 + 2;

/** The columns of the examples: C1, C2 with any number of values, I1, I2. */
const MODEL = model({
  inputs: [value('ids', INT64, ['n', 2]), value('dense_input', FLOAT, ['n', 2])],
  outputs: [value('prob', FLOAT, ['n', 1])],
  initializers: [
    floats('t', [20, 3], ramp(60)),
    floats('w', [WIDTH, 1], ramp(WIDTH, 5)),
    ints('flat', [2], [0, 6]),
  ],
  nodes: [
    node('Gather', ['t', 'ids'], ['rows']),
    node('Reshape', ['rows', 'flat'], ['e']),
    node('Concat', ['e', 'dense_input'], ['x'], { attributes: { axis: 1 } }),
    node('MatMul', ['x', 'w'], ['logit']),
    node('Sigmoid', ['logit'], ['prob']),
  ],
});
const FEATURES = {
  format: 1,
  hash: { scheme: 'xxh64-concat', seed: '0', modulo: '20' },
  slots: [
    { name: 'C1', index: 1 },
    { name: 'C2', index: 2, pooling: 'sum' },
  ],
  dense: {
    input: 'dense_input',
    features: ['I1', 'I2'].map((name) => ({ name, missing: 0, log: true, shift: 0, scale: 1 })),
  },
  click: { output: 'prob', column: 0 },
  ids: [{ input: 'ids', slots: ['C1', 'C2'] }],
};

function isInstalled(tool: string): boolean {
  return spawnSync(tool, ['--version']).error === undefined;
}

/** The commands of a page: each starts with its tool at the start of a line. */
function findCommands(page: string): string[] {
  const text = readFileSync(join(PAGES, page), 'utf8');
  const blocks = [...text.matchAll(/^```sh\n([\s\S]*?)^```$/gm)].map(([, block]) => block!);
  return blocks.flatMap((block) => block.split(/^(?=curl |grpcurl )/m)).map((one) => one.trim());
}

test('every request shown in docs/wire gets a response', {
  skip: !isInstalled('curl'),
}, async (t) => {
  const location = await publishModel(t, MODEL, FEATURES);
  const why = { version: '1', by: 'test', reason: 'test' };
  await openRepository(location).activate(BUNDLE, 'stable', why);
  const flags = ['--repository', location, '--bundle', BUNDLE, '--instances', '1'];
  // The commands run while this process waits for them.
  const serving = await ServingProcess.start(t, flags, { isProcess: true });
  await serving.waitUntilReady();
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'rows.tsv'), '1\t5\t\t68fd1e64\tx\n\t2\t\ty\n');
  writeFileSync(
    join(folder, 'rows.jsonl'),
    '{"I1":5,"C1":"68fd1e64"}\n{"C9":"x"}\n{"C2":["a","b"]}\n',
  );
  const { host } = new URL(serving.url);
  const commands = readdirSync(PAGES).flatMap(findCommands);
  let count = 0;
  for (const command of commands) {
    if (!command.startsWith('curl ')) {
      t.diagnostic(`not run here: ${command}`);
      continue;
    }
    const own = command
      .replace(/(127\.0\.0\.1|localhost):\d+/g, host)
      .replaceAll('ctr-dnn', BUNDLE);
    const { status, stdout } = spawnSync('sh', ['-c', own], { cwd: folder, encoding: 'utf8' });
    assert.equal(status, 0, own);
    count++;
    if (own.includes('> scores.jsonl')) continue;
    const answer = JSON.parse(stdout);
    assert.equal(answer.error ?? answer.err_msg, undefined, `${own}\n${stdout}`);
  }
  assert.ok(count >= 6, `${count} of ${commands.length} commands were run`);
  const scores = readFileSync(join(folder, 'scores.jsonl'), 'utf8').trimEnd().split('\n');
  assert.deepEqual(
    scores.map((line) => Object.keys(JSON.parse(line))[0]),
    ['probability', 'line', 'probability'],
  );
  assert.equal(await serving.stop(), 0);
});
