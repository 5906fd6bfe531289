/** `build_dag_each_worker`: processes behind the same ports, killed under load and stopped. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { ServingProcess } from '../support/serving-process.ts';
import { writeService } from '../support/thread-pipeline.ts';

const SERVICE = `
import { existsSync } from 'node:fs';
import { Op, RequestOp, ResponseOp } from 'hypercube/pipeline';

/** Waits for a file where the request names one. */
class Slow extends Op {
  async process([{ file }]) {
    while (file !== '' && !existsSync(file)) await new Promise((resolve) => setTimeout(resolve, 5));
    return [{ pid: String(process.pid) }];
  }
}
const slow = new Slow({ name: 'slow', inputs: [new RequestOp()], concurrency: 64 });
export default { name: 'toy', ops: new ResponseOp({ inputs: [slow] }) };
`;

/** @returns the process that answered, over a connection of its own; undefined: it was lost */
function ask(address: string, file = ''): Promise<number | undefined> {
  const [host, port] = address.split(':');
  const body = JSON.stringify({ key: ['file'], value: [file] });
  return new Promise((resolve) => {
    const options = { host, port, method: 'POST', path: '/toy/prediction', agent: false };
    const call = request(options, (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('error', () => resolve(undefined));
      response.on('end', () => {
        const answer = JSON.parse(Buffer.concat(chunks).toString());
        assert.equal(answer.err_no, 0, answer.err_msg);
        resolve(Number(answer.value[0]));
      });
    });
    call.on('error', () => resolve(undefined));
    call.end(body);
  });
}

/** Waits until the processes have this many requests in progress. */
async function waitForRequests(serving: ServingProcess, count: number): Promise<void> {
  const series = /^hypercube_pipeline_requests_in_progress\{.*\} (\d+)$/gm;
  await serving.waitFor('/metrics', ({ body }) => {
    const counts = [...(body as string).matchAll(series)].map(([, value]) => Number(value));
    return counts.length === 2 && counts.reduce((sum, value) => sum + value, 0) === count;
  });
}

test('worker processes share both ports; a killed one is replaced; SIGTERM drains', async (t) => {
  const file = writeService(t, SERVICE);
  const config = join(dirname(file), 'config.yml');
  writeFileSync(config, 'rpc_port: 0\nhttp_port: 0\nworker_num: 2\nbuild_dag_each_worker: true\n');
  const flags = ['--pipeline', file, '--config', config];
  const serving = await ServingProcess.start(t, flags, { hasOwnPort: true });
  const { addresses } = JSON.parse(
    serving.log.find((line) => line.includes('"listening"')) ?? '{}',
  ) as { addresses: string[] };
  const pids = new Set<number | undefined>();
  while (pids.size < 2) for (const address of addresses) pids.add(await ask(address));
  assert.ok(!pids.has(undefined) && !pids.has(serving.child.pid));

  const [address = ''] = addresses;
  const [victim = 0, other] = [...pids];
  const [gate, lastGate] = [join(dirname(file), 'gate'), join(dirname(file), 'last-gate')];
  const running = Array.from({ length: 20 }, () => ask(address, gate));
  await waitForRequests(serving, 20);
  process.kill(victim, 'SIGKILL');
  writeFileSync(gate, '');
  const answers = await Promise.all(running);
  const lost = answers.filter((pid) => pid === undefined).length;
  assert.ok(lost <= 10, `${lost} of 20 requests were lost; the killed process had 10`);
  assert.ok(answers.every((pid) => pid === undefined || pid === other || pid === victim));
  while (pids.size < 3) pids.add(await ask(address));
  assert.ok(!pids.has(undefined));
  const { body } = await serving.waitFor('/metrics', (answer) =>
    /hypercube_pipeline_worker_restarts_total\{worker="[01]"\} 1/.test(answer.body),
  );
  for (const worker of [0, 1]) {
    assert.match(
      body,
      new RegExp(`^hypercube_pipeline_requests_total\\{worker="${worker}"\\} `, 'm'),
    );
  }
  assert.equal(body.match(/^# TYPE hypercube_pipeline_requests_total /gm)?.length, 1);

  const last = ask(address, lastGate);
  await waitForRequests(serving, 1);
  const stopped = serving.stop();
  while (!serving.log.some((line) => line.includes('"stopping"'))) await sleep(5);
  writeFileSync(lastGate, '');
  assert.equal(await stopped, 0);
  assert.ok((await last) !== undefined, 'the request in progress is answered');
});
