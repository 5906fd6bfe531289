/** Services that a pipeline starts as processes: killed under load, shared by reloads, stopped. */
import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { PIPELINE_ERROR } from '../../../proto/pipeline.ts';
import { readLocalServices } from '../../../serving/config/local-services-config.ts';
import { parsePipelineConfig } from '../../../serving/config/pipeline-config.ts';
import { KeyCommands } from '../../access/support/key-commands.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { FLOAT, model, node, value } from '../../tools/prune-model/support/onnx-builder.ts';
import { ServingProcess } from '../support/serving-process.ts';

const SERVICE = `
import { createTensor, Op, RequestOp, ResponseOp } from 'hypercube/pipeline';

class Double extends Op {
  preprocess({ '@DAGExecutor': { x } }) {
    return { x: createTensor('FP32', [1, 1], Float32Array.of(Number(x))) };
  }

  postprocess(_inputs, { y }) {
    return { y: String(y.data[0]) };
  }
}
const double = new Double({ name: 'double', inputs: [new RequestOp()] });
export default { name: 'toy', ops: new ResponseOp({ inputs: [double] }) };
`;

async function findFreePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** A model that doubles its input, a pipeline that calls it, and where config.yml is. */
function writeFiles(t: TestContext): { readonly flags: string[]; readonly config: string } {
  const folder = temporaryFolder(t);
  mkdirSync(join(folder, 'double'));
  const graph = model({
    inputs: [value('x', FLOAT, ['batch', 1])],
    outputs: [value('y', FLOAT, ['batch', 1])],
    initializers: [],
    nodes: [node('Add', ['x', 'x'], ['y'])],
  });
  writeFileSync(join(folder, 'double', 'model.onnx'), graph);
  const service = join(folder, 'service.mjs');
  const config = join(folder, 'config.yml');
  writeFileSync(service, SERVICE);
  return { flags: ['--pipeline', service, '--config', config], config };
}

const formatConfig = (port: number, more = '', concurrency = 8): string => `
rpc_port: 0
${more}
op:
  double:
    server_endpoints: ["127.0.0.1:${port}"]
    concurrency: ${concurrency}
    local_service_conf: { client_type: brpc, model_config: double }
`;

async function ask(
  url: string,
  x: number,
  headers: Readonly<Record<string, string>> = {},
): Promise<{ errNo: number; y: string | undefined }> {
  const response = await fetch(`${url}/toy/prediction`, {
    method: 'POST',
    headers,
    body: JSON.stringify({ key: ['x'], value: [String(x)] }),
  });
  const { err_no: errNo, value: values } = (await response.json()) as {
    readonly err_no: number;
    readonly value: readonly string[];
  };
  return { errNo, y: values?.[0] };
}

/** Process ids of the service so far, the newest last. */
function listPids({ log }: ServingProcess): number[] {
  const listening = log.filter((line) => line.includes('servicePid') && line.includes('listening'));
  return listening.map((line) => Number(JSON.parse(line).servicePid));
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

test('a service is started, killed under load, restarted and stopped', async (t) => {
  const { flags, config } = writeFiles(t);
  const port = await findFreePort();
  writeFileSync(config, formatConfig(port));
  const serving = await ServingProcess.start(t, flags, { hasOwnPort: true });
  // The start waits for the model.
  assert.deepEqual(await ask(serving.url, 21), { errNo: 0, y: '42' });
  let isStopped = false;
  let next = 0;
  let successes = 0;
  const codes = new Set<number>();
  const callers = Array.from({ length: 8 }, async () => {
    while (!isStopped) {
      const x = next++;
      const { errNo, y } = await ask(serving.url, x);
      codes.add(errNo);
      if (errNo !== 0) continue;
      successes++;
      assert.equal(y, String(2 * x));
    }
  });
  const until = async (isDone: () => boolean): Promise<void> => {
    while (!isDone()) await Promise.race([sleep(5), Promise.all(callers)]);
  };
  for (const round of [1, 2]) {
    const before = successes;
    await until(() => successes > before + 100);
    process.kill(listPids(serving).at(-1)!, 'SIGKILL');
    await until(() => listPids(serving).length > round);
    const restarted = successes;
    await until(() => successes > restarted + 100);
  }
  // A reload keeps the process of an unchanged service.
  const pid = listPids(serving).at(-1)!;
  writeFileSync(config, formatConfig(port, '', 4));
  assert.equal((await serving.post('/v1/reload', '')).status, 200);
  isStopped = true;
  await Promise.all(callers);
  codes.delete(0);
  assert.deepEqual([...codes], [PIPELINE_ERROR.CLIENT_ERROR], 'a dead service is 9000');
  assert.deepEqual(listPids(serving).at(-1), pid);
  assert.equal(await serving.stop(), 0);
  assert.ok(!isRunning(pid), 'the service has ended with its pipeline');
});

test('a service does not take the settings of its pipeline from the environment', async (t) => {
  const { flags, config } = writeFiles(t);
  writeFileSync(config, formatConfig(await findFreePort()));
  const keys = new KeyCommands(join(temporaryFolder(t), 'keys.json'));
  const key = keys.add('caller', '--scope', 'predict');
  const env = { HYPERCUBE_KEY_FILE: keys.file };
  const serving = await ServingProcess.start(t, flags, { hasOwnPort: true, env });
  // Its op calls the service without a key.
  assert.deepEqual(await ask(serving.url, 21, { 'x-api-key': key }), { errNo: 0, y: '42' });
});

test('services of worker processes belong to the process that started them', async (t) => {
  const { flags, config } = writeFiles(t);
  const more = 'worker_num: 2\nbuild_dag_each_worker: true';
  writeFileSync(config, formatConfig(await findFreePort(), more));
  const serving = await ServingProcess.start(t, flags, { hasOwnPort: true });
  assert.deepEqual(await ask(serving.url, 4), { errNo: 0, y: '8' });
  const pids = listPids(serving);
  assert.equal(pids.length, 1);
  // Killed itself, it cannot stop its services: they notice that it is gone.
  serving.child.kill('SIGKILL');
  while (isRunning(pids[0]!)) await sleep(10);
});

test('a service that cannot start, or is not of this machine, is refused by its op', async (t) => {
  const { flags, config } = writeFiles(t);
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  t.after(() => other.close());
  const { port } = other.address() as { port: number };
  writeFileSync(config, formatConfig(port));
  await assert.rejects(
    ServingProcess.start(t, flags, { hasOwnPort: true }),
    /op double: the service at 127\.0\.0\.1:\d+ cannot start: .*in use by another process/,
  );
  const read = (op: string) =>
    readLocalServices(parsePipelineConfig(`rpc_port: 1\nop: { a: { ${op} } }`, config), config);
  const conf = 'local_service_conf: { client_type: grpc, model_config: double }';
  const cases: readonly (readonly [string, RegExp])[] = [
    [`server_endpoints: ["10.0.0.1:80"], ${conf}`, /op a: server_endpoints 10\.0\.0\.1:80: .*127/],
    [`server_endpoints: ["127.0.0.1"], ${conf}`, /expected host:port, got "127\.0\.0\.1"/],
    [
      `server_endpoints: ["localhost:80", "localhost:80"], ${conf}`,
      /op a starts its service there/,
    ],
    [
      'server_endpoints: ["[::1]:80"], local_service_conf: { client_type: brpc }',
      /needs model_con/,
    ],
  ];
  for (const [op, message] of cases) assert.throws(() => read(op), message);
  // Without a client_type of local_service_conf, others start the service.
  assert.deepEqual(read('server_endpoints: ["10.0.0.1:80"], local_service_conf: {}'), []);
});
