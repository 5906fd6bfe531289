/** `serving --pipeline` as a process: the file of a user's own project, and --check-config. */
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runProcess } from '../../support/processes.ts';
import { ServingProcess } from '../support/serving-process.ts';

const MAIN = 'serving/main.js';
const SERVICE = `
import { Op, RequestOp, ResponseOp, type OpValues } from 'hypercube/pipeline';
import { shout } from './shout.ts';

class Shout extends Op {
  override preprocess({ '@DAGExecutor': { text } }: { '@DAGExecutor': OpValues }) {
    return { text: shout(String(text)) };
  }
}

const read = new RequestOp();
const op = new Shout({ name: 'shout', inputs: [read] });
export default async () => new ResponseOp({ inputs: [op] });
`;
const HELPER = "export const shout = (text: string): string => text.toUpperCase() + '!';\n";

test('a TypeScript pipeline outside of this package is served on both ports', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'echo.ts'), SERVICE);
  writeFileSync(join(folder, 'shout.ts'), HELPER);
  // Types are stripped by Node, or compiled by the project's own TypeScript.
  mkdirSync(join(folder, 'node_modules'));
  cpSync('node_modules/typescript', join(folder, 'node_modules', 'typescript'), {
    recursive: true,
  });
  const config = join(folder, 'config.yml');
  writeFileSync(config, 'rpc_port: 0\nhttp_port: 0\nop: {shout: {concurrency: 2}}\n');
  const flags = ['--pipeline', join(folder, 'echo.ts'), '--config', config];
  const serving = await ServingProcess.start(t, flags, { hasOwnPort: true });
  const { addresses, pipeline } = JSON.parse(
    serving.log.find((line) => line.includes('"listening"')) ?? '{}',
  );
  assert.equal(pipeline, 'echo');
  assert.equal(addresses.length, 2);
  for (const address of addresses) {
    const response = await fetch(`http://${address}/echo/prediction`, {
      method: 'POST',
      body: JSON.stringify({ key: ['text'], value: ['hello'] }),
    });
    const { err_no: errNo, value } = (await response.json()) as { err_no: number; value: string[] };
    assert.deepEqual([errNo, value], [0, ['HELLO!']]);
  }
});

test('--check-config explains config.yml; a refused field is exit code 2', async (t) => {
  const folder = temporaryFolder(t);
  const config = join(folder, 'config.yml');
  const service = join(folder, 'service.js');
  writeFileSync(service, '');
  writeFileSync(config, 'http_port: 9000\nop: {a: {timeout: 5}}\n');
  const flags = ['--pipeline', service, '--config', config, '--check-config'];
  const good = await runProcess(MAIN, ...flags);
  assert.equal(good.code, 0, good.stderr);
  assert.match(good.stdout, /^port: 9000$/m);
  assert.match(good.stdout, /^honoured: op\.a\.timeout = 5 \(.*config\.yml:2:/m);
  writeFileSync(config, 'http_port: 9000\nop: {a: {use_encryption_model: true}}\n');
  const refused = await runProcess(MAIN, ...flags);
  assert.equal(refused.code, 2);
  assert.match(refused.stdout, /^refused: op\.a\.use_encryption_model = true/m);
  const noConfig = await runProcess(MAIN, '--pipeline', service);
  assert.match(noConfig.stderr, /--pipeline needs --config/);
});

test('a file that is no pipeline says what it must export', async (t) => {
  const folder = temporaryFolder(t);
  const config = join(folder, 'config.yml');
  writeFileSync(config, 'http_port: 0\n');
  const service = join(folder, 'service.mjs');
  writeFileSync(service, 'export default 5;\n');
  const { code, stderr } = await runProcess(MAIN, '--pipeline', service, '--config', config);
  assert.notEqual(code, 0);
  assert.match(stderr, /service\.mjs: the default export must be a ResponseOp, a list of ops/);
});
