/**
 * A serving process (in this one) with two versions of the toy bundle, 1 in the channel stable and
 * 2 in canary, and a traffic file.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { createLogger } from '../../../lib/platform/logs.ts';
import { completeConfig } from '../../../serving/config/serving-config.ts';
import { startServing } from '../../../serving/server.ts';
import { BUNDLE, ToyBundle, type ToyRow } from './toy-bundle.ts';
import { ToyRepository } from './toy-service.ts';

export const TOYS: Readonly<Record<string, ToyBundle>> = {
  '1': new ToyBundle({ version: '1', seed: 3 }),
  '2': new ToyBundle({ version: '2', seed: 4 }),
};

export interface TrafficServer {
  readonly url: string;
  readonly file: string;
  readonly exposureFile: string;
}

/** @param context runs the clean-ups */
export async function startTrafficServer(
  context: Pick<TestContext, 'after'>,
  traffic: string,
): Promise<TrafficServer> {
  const toys = new ToyRepository(context as TestContext);
  for (const toy of Object.values(TOYS)) await toys.publish(toy);
  await toys.activate('1');
  await toys.activate('2', 'canary');
  const file = join(toys.folder, 'traffic.yaml');
  const exposureFile = join(toys.folder, 'exposures.jsonl');
  writeFileSync(file, traffic);
  const config = completeConfig({
    port: 0,
    timeoutMs: 60_000,
    trafficFile: file,
    exposureLog: exposureFile,
    models: [
      {
        repository: toys.location,
        bundle: BUNDLE,
        channel: ['stable', 'canary'],
        store: 'memory',
        instances: 1,
      },
    ],
  });
  const serving = await startServing({ config, logger: createLogger('test', { level: 'silent' }) });
  context.after(() => serving.stop());
  const url = `http://${serving.address}`;
  await until(async () => {
    const { models } = (await (await fetch(`${url}/v1/status`)).json()) as {
      models: { channels: { active?: string }[] }[];
    };
    return models[0]?.channels.every(({ active }) => active !== undefined) ?? false;
  });
  return { url, file, exposureFile };
}

export async function until(isDone: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await isDone())) await sleep(20);
}

/** The variants by experiment, from the header or trailer of an answer. */
export function parseVariants(header: string | null | undefined): Record<string, string> {
  const pairs = (header ?? '').split(', ').filter(Boolean);
  return Object.fromEntries(pairs.map((pair) => pair.split('=')));
}

/** @param clicks click probabilities that this version answered */
export function assertScores(
  { version, clicks }: { readonly version: string; readonly clicks: readonly number[] },
  rows: readonly ToyRow[],
): void {
  assert.equal(clicks.length, rows.length);
  rows.forEach((row, i) => {
    const expected = TOYS[version]?.score(row)[1] ?? Number.NaN;
    const difference = Math.abs((clicks[i] ?? Number.NaN) - expected);
    assert.ok(difference < 1e-5, `version ${version}, row ${i}: off by ${difference}`);
  });
}
