/** `build_dag_each_worker`: processes behind the same ports, killed under load and stopped. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { credentials } from '@grpc/grpc-js';
import { PIPELINE_SERVICE } from '../../../proto/pipeline.ts';
import type { PipelineDescription } from '../../../serving/pipeline/pipeline-history.ts';
import { CertificateAuthority } from '../../rpc/support/certificates.ts';
import { RawGrpcClient } from '../../rpc/support/grpc-client.ts';
import { decodePipelineReply, encodePipelineMessage } from '../support/pipeline-client.ts';
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

/** Waits until the processes have this many requests in progress. @returns those of each */
async function waitForRequests(serving: ServingProcess, count: number): Promise<number[]> {
  const series = /^hypercube_pipeline_requests_in_progress\{.*\} (\d+)$/gm;
  const read = ({ body }: { readonly body: string }): number[] =>
    [...body.matchAll(series)].map(([, value]) => Number(value));
  const answer = await serving.waitFor('/metrics', (seen) => {
    const counts = read(seen);
    return counts.length === 2 && counts.reduce((sum, value) => sum + value, 0) === count;
  });
  return read(answer);
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
  const counts = await waitForRequests(serving, 20);
  process.kill(victim, 'SIGKILL');
  writeFileSync(gate, '');
  const answers = await Promise.all(running);
  const lost = answers.filter((pid) => pid === undefined).length;
  assert.ok(counts.includes(lost), `${lost} of 20 requests were lost; the processes had ${counts}`);
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

test('connections for a worker that is killed before it takes them are answered', async (t) => {
  const file = writeService(t, SERVICE);
  const config = join(dirname(file), 'config.yml');
  writeFileSync(config, 'rpc_port: 0\nhttp_port: 0\nworker_num: 2\nbuild_dag_each_worker: true\n');
  const flags = ['--pipeline', file, '--config', config];
  const serving = await ServingProcess.start(t, flags, { hasOwnPort: true });
  const { host: address } = new URL(serving.url);
  const pids = new Set<number | undefined>();
  while (pids.size < 2) pids.add(await ask(address));
  const [victim = 0, other] = [...pids];
  process.kill(victim, 'SIGSTOP');
  const asked = Array.from({ length: 12 }, () => ask(address));
  // The other process takes its half, so the rest was given to the one that is stopped.
  await sleep(500);
  process.kill(victim, 'SIGKILL');
  const answers = await Promise.all(asked);
  const lost = answers.filter((pid) => pid === undefined).length;
  assert.ok(lost <= 1, `${lost} of 12 requests were lost; the killed process may have taken one`);
  assert.ok(answers.filter((pid) => pid === other).length >= 6);
});

/** @returns the process that answered */
async function askGrpc(client: RawGrpcClient): Promise<number> {
  const request = encodePipelineMessage({ key: ['file'], value: [''] });
  const { bytes, code, details } = await client.call(`/${PIPELINE_SERVICE}/inference`, request);
  assert.equal(code, 0, details);
  const { err_no, err_msg, value } = decodePipelineReply(bytes);
  assert.equal(err_no, 0, err_msg);
  return Number(value[0]);
}

test('worker processes take gRPC and TLS; the console has the sums of all', async (t) => {
  const file = writeService(t, SERVICE);
  const config = join(dirname(file), 'config.yml');
  writeFileSync(config, 'rpc_port: 0\nworker_num: 2\nbuild_dag_each_worker: true\n');
  const authority = new CertificateAuthority(dirname(file), 'authority');
  const { cert, key } = authority.issue({ name: 'server' });
  const flags = ['--pipeline', file, '--config', config, '--tls-cert', cert, '--tls-key', key];
  const serving = await ServingProcess.start(t, flags, { hasOwnPort: true });
  const { host, port } = new URL(serving.url);
  const tls = credentials.createSsl(readFileSync(authority.path));
  const counts = new Map<number, number>();
  const count = (pid = 0): void => void counts.set(pid, (counts.get(pid) ?? 0) + 1);
  while (counts.size < 2) {
    for (const channel of [tls, credentials.createInsecure()]) {
      const client = new RawGrpcClient(Number(port), channel);
      // One connection, one process.
      const pid = await askGrpc(client);
      assert.equal(await askGrpc(client), pid);
      count(pid);
      count(pid);
      client.close();
    }
    count(await ask(host));
  }
  const requests = [...counts.values()].reduce((sum, value) => sum + value, 0);
  // Whichever process answers.
  for (let i = 0; i < 4; i++) {
    const answer = await fetch(`${serving.url}/v1/console/snapshot`, {
      headers: { connection: 'close' },
    });
    const { state } = (await answer.json()) as {
      readonly state: { readonly pipeline: PipelineDescription };
    };
    const [op] = state.pipeline.ops;
    assert.deepEqual(
      [op?.name, op?.requests, op?.concurrency, op?.queued],
      ['slow', requests, 128, 0],
    );
  }
});
