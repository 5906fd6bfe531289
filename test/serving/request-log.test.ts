/** The log file of a serving process: slow predictions and a sample, without features. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { createLogger } from '../../lib/platform/logs.ts';
import { completeConfig } from '../../serving/config/serving-config.ts';
import { startServing } from '../../serving/server.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

// biome-ignore lint/suspicious/noExplicitAny: fields of log lines
function readLines(path: string): any[] {
  const lines = readFileSync(path, 'utf8').split('\n').filter(Boolean);
  return lines.map((line) => JSON.parse(line));
}

test('slow predictions and a sample are logged with their stages', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(new ToyBundle({ version: '1', seed: 3 }));
  await toys.activate('1');
  const config = completeConfig({
    port: 0,
    timeoutMs: 60_000,
    logFile: join(toys.folder, 'serving.log'),
    slowRequestMs: 1,
    requestLogShare: 1,
    models: [{ repository: toys.location, bundle: BUNDLE, store: 'memory', instances: 1 }],
  });
  const logger = createLogger('serving', { file: config.logFile });
  const serving = await startServing({ config, logger });
  t.after(() => serving.stop());
  const url = `http://${serving.address}`;
  while (!(await fetch(`${url}/readyz`)).ok) await sleep(20);
  // A large request takes more than a millisecond.
  const rows = toyRows(2_000);
  const headers = { 'content-type': 'text/tab-separated-values' };
  const call = { method: 'POST', headers, body: toTsv(rows) };
  const response = await fetch(`${url}/v1/ctr:predict`, call);
  assert.equal(response.status, 200, await response.text());
  const refused = await fetch(`${url}/v1/ctr:predict`, { ...call, body: 'not a row' });
  assert.equal(refused.status, 400);
  const lines = readLines(join(toys.folder, 'serving.log'));
  const logged = lines.filter(({ msg }) => msg === 'request');
  const [answered, failed] = logged;
  assert.equal(logged.length, 2);
  const { model, version, code } = answered;
  assert.deepEqual({ model, version, code }, { model: BUNDLE, version: '1', code: 'OK' });
  assert.equal(answered.rows, rows.length);
  const stagesMs = answered.queueMs + answered.inferMs;
  assert.ok(stagesMs > 0 && answered.durationMs > 0, JSON.stringify(answered));
  assert.equal(failed.code, 'INVALID_ARGUMENT');
  const slow = lines.filter(({ msg }) => msg === 'slow request');
  assert.equal(slow[0].durationMs, answered.durationMs);
  const feature = rows[0]!.categorical[0]!;
  assert.ok(!lines.some((line) => JSON.stringify(line).includes(feature)), feature);
});
