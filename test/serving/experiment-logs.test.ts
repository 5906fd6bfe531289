/** Serving follows the experiments of a repository, and of serving.yaml. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { Experiment } from '../../lib/core/experiment.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { generateKeyPair, SigningKey, TrustedKeys } from '../../lib/repository/signatures.ts';
import { completeConfig } from '../../serving/config/serving-config.ts';
import { parseSettings } from '../../serving/config/settings-file.ts';
import { readTrafficFile } from '../../serving/config/traffic-file.ts';
import { ExperimentLogs } from '../../serving/models/experiment-logs.ts';
import { TrafficFile } from '../../serving/models/traffic.ts';
import { startServing } from '../../serving/server.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { BUNDLE, toTsv, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';
import { parseVariants, TOYS, until } from './support/traffic-server.ts';

const ACTION = { by: 'ann', reason: 'test' };

/** One of two variants always answers. */
function makeExperiment(name: string, chosen: string, channel?: string): Experiment {
  const variants = ['control', 'new'].map((variant) => ({
    name: variant,
    weight: variant === chosen ? 1 : 0,
    target: variant === 'new' && channel !== undefined ? { channel } : {},
  }));
  return { name, model: BUNDLE, salt: name, variants, overrides: new Map() };
}

test('serving follows the log without a restart, beside serving.yaml', async (t) => {
  const toys = new ToyRepository(t);
  for (const toy of Object.values(TOYS)) await toys.publish(toy);
  await toys.activate('1');
  await toys.activate('2', 'canary');
  const log = toys.repository.experimentLog(BUNDLE);
  let entry = await log.append(undefined, {
    experiments: [makeExperiment('ranking', 'new', 'canary')],
    ...ACTION,
  });
  // The model's name is not the bundle's: experiments are those of the bundle that it serves.
  const settings = parseSettings(
    `port: 0
timeout-ms: 60000
models:
  - name: ctr
    repository: ${toys.location}
    bundle: ${BUNDLE}
    channel: [stable, canary]
    poll-ms: 50
    instances: 1
experiments:
  - { name: layout, model: ctr, variants: [{ name: a, weight: 1 }, { name: b, weight: 0 }] }
`,
    'serving.yaml',
  );
  const logger = createLogger('test', { level: 'silent' });
  const serving = await startServing({ config: completeConfig(settings), logger });
  t.after(() => serving.stop());
  const url = `http://${serving.address}`;
  const predict = async (): Promise<{ version: string; variants: Record<string, string> }> => {
    const response = await fetch(`${url}/v1/ctr:predict`, {
      method: 'POST',
      headers: { 'content-type': 'text/tab-separated-values', 'x-experiment-key': 'u' },
      body: toTsv(toyRows(1)),
    });
    const text = await response.text();
    assert.equal(response.status, 200, text);
    const { version } = JSON.parse(text);
    return { version, variants: parseVariants(response.headers.get('hypercube-experiments')) };
  };
  await until(async () => (await fetch(`${url}/readyz`)).ok);
  // The process is ready before the other channel's version is loaded.
  await until(async () => (await predict()).version === '2');
  assert.deepEqual((await predict()).variants, { ranking: 'new', layout: 'a' });

  entry = await log.append(entry, {
    experiments: [makeExperiment('ranking', 'control', 'canary')],
    ...ACTION,
  });
  await until(async () => (await predict()).version === '1');
  const readStatus = async (): Promise<Record<string, never[]>> =>
    (await fetch(`${url}/v1/status`)).json() as never;
  const status = JSON.stringify(await readStatus());
  assert.match(status, /"experimentLogs":\[\{"model":"ctr","seq":2,"at":"[^"]+","by":"ann"/);
  assert.match(status, /"name":"new","weight":0,"channel":"canary","loaded":true/);

  // A name that serving.yaml uses: the previous experiments continue, and the status says why.
  entry = await log.append(entry, { experiments: [makeExperiment('layout', 'new')], ...ACTION });
  await until(async () => (await readStatus())['experimentProblems']?.length === 1);
  assert.match(JSON.stringify(await readStatus()), /the name layout is used twice/);
  assert.deepEqual((await predict()).variants, { ranking: 'control', layout: 'a' });

  await log.append(entry, { experiments: [], ...ACTION });
  await until(async () => (await predict()).variants['ranking'] === undefined);
  assert.deepEqual((await readStatus())['experimentProblems'], []);
});

async function makeSignedLog(t: TestContext) {
  const folder = temporaryFolder(t);
  const { privatePem, publicPem } = generateKeyPair();
  writeFileSync(join(folder, 'key.pem'), privatePem);
  writeFileSync(join(folder, 'key.pem.pub'), publicPem);
  const location = join(folder, 'repository');
  const signing = SigningKey.read(join(folder, 'key.pem'));
  const trusted = TrustedKeys.read(join(folder, 'key.pem.pub'));
  const open = (keys: object) =>
    openRepository(location, { create: true, keys }).experimentLog(BUNDLE);
  const logs = new ExperimentLogs({
    logs: [{ model: 'm', log: open({ trusted }), pollMs: 10 }],
    files: new TrafficFile(),
    clock: systemClock,
    logger: createLogger('test', { level: 'silent' }),
  });
  return { signed: open({ signing }), unsigned: open({}), location, logs };
}

test('an entry that no trusted key signed, or a damaged one, changes nothing', async (t) => {
  const { signed, unsigned, location, logs } = await makeSignedLog(t);
  const running = (): string[] => logs.current().experiments.map(({ name }) => name);
  const first = await signed.append(undefined, {
    experiments: [makeExperiment('first', 'new')],
    ...ACTION,
  });
  const forged = await unsigned.append(first, {
    experiments: [makeExperiment('forged', 'new')],
    ...ACTION,
  });
  // A process that starts now takes the newest valid entry.
  await logs.start();
  t.after(() => logs.stop());
  assert.deepEqual(running(), ['first']);
  assert.equal(logs.current().experiments[0]?.model, 'm');
  assert.match(logs.problems[0]?.problem ?? '', /0000000002\.json is not signed/);
  writeFileSync(join(location, BUNDLE, 'experiments', '0000000003.json'), '{"experiments":');
  await until(() => /0000000003\.json: not JSON/.test(logs.problems[0]?.problem ?? ''));
  assert.deepEqual(running(), ['first']);
  await signed.append(
    { ...forged, seq: 3 },
    { experiments: [makeExperiment('fourth', 'new')], ...ACTION },
  );
  await until(() => running()[0] === 'fourth');
  assert.deepEqual(logs.problems, []);
  assert.equal(logs.origins[0]?.seq, 4);
});

test('many followed logs cause no warning of Node', async (t) => {
  const warnings: string[] = [];
  const note = ({ name }: Error): number => warnings.push(name);
  process.on('warning', note);
  t.after(() => process.off('warning', note));
  const log = { readNewest: () => Promise.resolve({ entry: undefined, problem: undefined }) };
  const logs = new ExperimentLogs({
    logs: Array.from({ length: 20 }, (_, i) => ({ model: `m${i}`, log, pollMs: 3_600_000 })),
    files: new TrafficFile(),
    clock: systemClock,
    logger: createLogger('test', { level: 'silent' }),
  });
  await logs.start();
  t.after(() => logs.stop());
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.deepEqual(warnings, []);
});

test('a process without requests and bundles reads a changed traffic file again', async (t) => {
  const path = join(temporaryFolder(t), 'traffic.yaml');
  writeFileSync(path, 'experiments: []\n');
  const problems: string[] = [];
  const logger = Object.assign(createLogger('test', { level: 'silent' }), {
    error: ({ error }: { error: string }) => problems.push(error),
  });
  const check = (): void => undefined;
  const files = new TrafficFile({ path, read: readTrafficFile, check, clock: systemClock, logger });
  const logs = new ExperimentLogs({ logs: [], files, clock: systemClock, logger });
  await logs.start();
  t.after(() => logs.stop());
  writeFileSync(path, 'experimints: []\n');
  await until(() => problems.length > 0);
  assert.match(problems[0] ?? '', /unknown field "experimints"/);
});
