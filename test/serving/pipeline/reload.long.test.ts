/** Reloads of pipelines and workflows: under load, with wrong files, killed and stopped midway. */
import assert from 'node:assert/strict';
import { cpSync, writeFileSync } from 'node:fs';
import { Agent, request } from 'node:http';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { ServingProcess } from '../support/serving-process.ts';

/** Two ops that say which generation of the imported file they have; the request may wait. */
const SERVICE = `
import { existsSync } from 'node:fs';
import { Op, RequestOp, ResponseOp } from 'hypercube/pipeline';
import { generation } from './generation.mjs';

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class First extends Op {
  async process([{ gate }]) {
    if (gate === 'exit') process.exit(1);
    do await pause(1); while (gate !== '' && !existsSync(gate));
    return [{ first: generation }];
  }
}
class Second extends Op {
  async initOp() {
    const { waitFor, failure } = await import('./generation.mjs');
    if (failure) throw new Error(failure);
    while (waitFor && !existsSync(waitFor)) await pause(5);
  }

  preprocess({ first }) {
    return { first: first.first, second: generation };
  }

}
const first = new First({ name: 'first', inputs: [new RequestOp()], concurrency: 16 });
const second = new Second({ name: 'second', inputs: [first], concurrency: 2 });
export default { name: 'toy', ops: new ResponseOp({ inputs: [second] }) };
`;

class Files {
  readonly folder: string;
  readonly service: string;
  readonly config: string;

  constructor(t: TestContext, config: string) {
    this.folder = temporaryFolder(t);
    this.service = join(this.folder, 'service.mjs');
    this.config = join(this.folder, 'config.yml');
    writeFileSync(this.service, SERVICE);
    this.writeConfig(config);
    this.write('1');
  }

  /** @param more exports: `waitFor`, a file that initOp waits for; `failure`, which it throws */
  write(generation: string, more = ''): void {
    const text = `export const generation = '${generation}';\n${more}`;
    writeFileSync(join(this.folder, 'generation.mjs'), text);
  }

  writeConfig(text: string): void {
    writeFileSync(this.config, `rpc_port: 0\nhttp_port: 0\n${text}`);
  }

  start(t: TestContext): Promise<ServingProcess> {
    const flags = ['--pipeline', this.service, '--config', this.config];
    return ServingProcess.start(t, flags, { hasOwnPort: true });
  }
}

/** @returns the generations of both ops, over a kept connection */
function ask(url: string, agent: Agent, gate = ''): Promise<readonly [string, string]> {
  const body = JSON.stringify({ key: ['gate'], value: [gate] });
  return new Promise((resolve, reject) => {
    const call = request(`${url}/toy/prediction`, { method: 'POST', agent }, (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('error', reject);
      response.on('end', () => {
        const { err_no, err_msg, key, value } = JSON.parse(Buffer.concat(chunks).toString());
        if (err_no !== 0) reject(new Error(`${err_no} ${err_msg}`));
        else resolve([value[key.indexOf('first')], value[key.indexOf('second')]]);
      });
    });
    call.on('error', reject);
    call.end(body);
  });
}

/** Asks on until it is stopped. Every answer must have both ops of one generation. */
class Load {
  readonly seen: Set<string> = new Set();
  readonly #agent = new Agent({ keepAlive: true });
  readonly #callers: readonly Promise<void>[];
  #isStopped = false;
  count = 0;

  constructor(url: string, callers = 8) {
    this.#callers = Array.from({ length: callers }, async () => {
      while (!this.#isStopped) {
        const [first, second] = await ask(url, this.#agent);
        assert.equal(first, second, 'a request met ops of two generations');
        this.seen.add(first);
        this.count++;
      }
    });
  }

  async waitFor(generation: string): Promise<void> {
    while (!this.seen.has(generation)) {
      await Promise.race([sleep(5), Promise.all(this.#callers)]);
    }
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    await Promise.all(this.#callers);
    this.#agent.destroy();
  }
}

const reload = (serving: ServingProcess) => serving.post('/v1/reload', '');

test('reloads under load lose no request and mix no ops; wrong files change nothing', async (t) => {
  const files = new Files(t, '');
  const serving = await files.start(t);
  const load = new Load(serving.url);
  await load.waitFor('1');
  for (const generation of ['2', '3', '4']) {
    files.write(generation);
    const before = load.count;
    assert.equal((await reload(serving)).status, 200);
    await load.waitFor(generation);
    assert.ok(load.count > before);
  }
  const agent = new Agent();
  t.after(() => agent.destroy());
  const wrong: readonly (readonly [() => void, RegExp])[] = [
    [() => files.write('5', 'export const ='), /Unexpected token/],
    [() => files.write('5', "export const failure = 'no table';"), /no table/],
    [() => files.writeConfig('op: {third: {concurrency: 2}}'), /op third.*has not/],
    [
      () => files.writeConfig('op: {first: {concurrency: none}}'),
      /config\.yml:3:\d+: .*concurrency/,
    ],
    [() => files.writeConfig('build_dag_each_worker: true'), /cannot change rpc_port.*restart/],
  ];
  for (const [damage, message] of wrong) {
    damage();
    const { status, body } = await reload(serving);
    assert.ok(status >= 400, JSON.stringify(body));
    assert.match(body.error, message);
    const { reload: state } = (await serving.get('/v1/status')).body;
    assert.equal(state.generation, 4);
    assert.match(state.problem, message);
    assert.deepEqual(await ask(serving.url, agent), ['4', '4']);
    files.write('5');
    files.writeConfig('');
  }
  assert.match((await serving.get('/metrics')).body, /^hypercube_serving_reload_successful 0$/m);
  files.writeConfig('op: {first: {concurrency: 3}}');
  serving.child.kill('SIGHUP');
  await load.waitFor('5');
  await load.stop();
  const { body: metrics } = await serving.waitFor('/metrics', ({ body }) =>
    body.includes('hypercube_serving_replaced_sets 0'),
  );
  assert.match(metrics, /^hypercube_serving_reloads_total\{result="ok"\} 4$/m);
  assert.match(metrics, /^hypercube_serving_reloads_total\{result="failed"\} 5$/m);
  assert.match(metrics, /^hypercube_serving_reload_successful 1$/m);
  assert.match(metrics, /^hypercube_pipeline_op_concurrency\{op="first"\} 3$/m);
  // Counters go on over generations.
  const answered = load.count + wrong.length;
  assert.match(metrics, new RegExp(`^hypercube_pipeline_requests_total ${answered}$`, 'm'));
  assert.ok(
    serving.log.some((line) => line.includes('no table')),
    'the log says why',
  );
});

test('requests in progress end on the ops that they began with', async (t) => {
  const files = new Files(t, 'dag: {is_thread_op: false}\nop: {first: {concurrency: 2}}');
  const serving = await files.start(t);
  const agent = new Agent();
  t.after(() => agent.destroy());
  const gate = join(files.folder, 'gate');
  const early = [ask(serving.url, agent, gate), ask(serving.url, agent, gate)];
  const inProgress = /^hypercube_pipeline_requests_in_progress 2$/m;
  await serving.waitFor('/metrics', ({ body }) => inProgress.test(body));
  files.write('2');
  assert.equal((await reload(serving)).status, 200);
  assert.deepEqual(await ask(serving.url, agent), ['2', '2']);
  assert.equal((await serving.get('/v1/status')).body.reload.draining, 1);
  writeFileSync(gate, '');
  for (const answer of await Promise.all(early)) assert.deepEqual(answer, ['1', '1']);
  await serving.waitFor('/v1/status', ({ body }) => body.reload.draining === 0);
  // A thread that is replaced runs the files as they were, not as they are.
  files.write('3', 'export const =');
  await assert.rejects(ask(serving.url, agent, 'exit'), /9000 op first: worker thread \d ended/);
  const replaced = /^hypercube_pipeline_op_thread_restarts_total\{op="first"\} 1$/m;
  await serving.waitFor('/metrics', ({ body }) => replaced.test(body));
  const answers = Array.from({ length: 4 }, () => ask(serving.url, agent));
  for (const answer of await Promise.all(answers)) assert.deepEqual(answer, ['2', '2']);
});

test('a process that is killed or stopped in a reload starts again', async (t) => {
  const files = new Files(t, '');
  const agent = new Agent();
  t.after(() => agent.destroy());
  const gate = join(files.folder, 'gate');
  for (const signal of ['SIGKILL', 'SIGTERM'] as const) {
    files.write('1');
    const serving = await files.start(t);
    files.write('2', `export const waitFor = ${JSON.stringify(gate + signal)};`);
    const pending = reload(serving).catch(() => undefined);
    assert.deepEqual(await ask(serving.url, agent), ['1', '1']);
    if (signal === 'SIGKILL') {
      serving.child.kill(signal);
      await pending;
    } else {
      const stopped = serving.stop();
      writeFileSync(gate + signal, '');
      assert.equal(await stopped, 0);
    }
  }
  writeFileSync(`${gate}SIGKILL`, '');
  writeFileSync(`${gate}SIGTERM`, '');
  const serving = await files.start(t);
  assert.deepEqual(await ask(serving.url, agent), ['2', '2']);
});

test('worker processes reload together, or not at all', async (t) => {
  const files = new Files(t, 'worker_num: 2\nbuild_dag_each_worker: true');
  const serving = await files.start(t);
  const load = new Load(serving.url);
  await load.waitFor('1');
  files.write('2');
  assert.equal((await reload(serving)).status, 200);
  await load.waitFor('2');
  // One of two processes cannot use the files.
  files.write('3', "export const failure = process.env.HYPERCUBE_CHILD_NUMBER === '1' && 'odd';");
  const failed = await reload(serving);
  assert.match(failed.body.error, /odd/);
  files.write('4');
  serving.child.kill('SIGHUP');
  await load.waitFor('4');
  await load.stop();
  assert.deepEqual([...load.seen], ['1', '2', '4']);
});

const OPS = `
import { Op } from 'hypercube/pipeline';
export class MarkOp extends Op {
  preprocess(inputs) {
    const [{ text }] = Object.values(inputs);
    return { text: text + ' 1' };
  }
}
`;
const PROTO = `syntax = "proto3";
message Text { string text = 1; }
service FirstService { rpc mark(Text) returns (Text); }
service SecondService { rpc mark(Text) returns (Text); }
`;

test('workflows, services and operators of a conf folder reload as one unit', async (t) => {
  const folder = temporaryFolder(t);
  const conf = join(folder, 'conf');
  cpSync(join('examples', 'pipeline-ctr', 'conf'), conf, { recursive: true });
  const write = (name: string, text: string) => writeFileSync(join(folder, name), text);
  const node = (name: string, from = '') => {
    const edge = from && `dependencies { name: "${from}" mode: "RO" }`;
    return `nodes { name: "${name}" type: "MarkOp" ${edge} }`;
  };
  write('ops.mjs', OPS);
  write('text.proto', PROTO);
  write('conf/workflow.prototxt', `workflows { name: "w" ${node('a')} }`);
  write('conf/service.prototxt', 'services { name: "FirstService" workflows: "w" }');
  const paths = ['--proto', join(folder, 'text.proto'), '--ops', join(folder, 'ops.mjs')];
  const serving = await ServingProcess.start(t, ['--conf-dir', conf, ...paths], {
    hasSeveralModels: true,
  });
  const mark = (name: string) => serving.post(`/${name}/mark`, JSON.stringify({ text: 'x' }));
  assert.deepEqual((await mark('FirstService')).body, { text: 'x 1' });
  assert.equal((await mark('SecondService')).status, 404);
  write('ops.mjs', OPS.replace("' 1'", "' 2'"));
  write('conf/workflow.prototxt', `workflows { name: "w" ${node('a')} ${node('b', 'a')} }`);
  write('conf/service.prototxt', 'services { name: "SecondService" workflows: "v" }');
  const wrong = await reload(serving);
  assert.match(wrong.body.error, /service SecondService: no workflow v/);
  assert.deepEqual((await mark('FirstService')).body, { text: 'x 1' });
  write('conf/service.prototxt', 'services { name: "SecondService" workflows: "w" }');
  assert.equal((await reload(serving)).status, 200);
  assert.deepEqual((await mark('SecondService')).body, { text: 'x 2 2' });
  assert.equal((await mark('FirstService')).status, 404);
});
