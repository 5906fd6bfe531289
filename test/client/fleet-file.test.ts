/** FleetFile: fleet.json changes while a client uses it. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, test } from 'node:test';
import { FleetFile } from '../../lib/client/fleet-file.ts';
import type { CubeError } from '../../lib/core/errors.ts';
import { type Fleet, formatFleet } from '../../lib/core/fleet.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { createReplica } from './support/test-fleet.ts';

let folder = '';
let path = '';
let nowMs = 0;
const clock: Clock = {
  nowMs: () => nowMs,
  isoTime: () => '',
  sleep: () => Promise.reject(new Error('nobody sleeps here')),
};

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hypercube-fleet-'));
  path = join(folder, 'fleet.json');
  nowMs = 1_000;
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function fleetOn(...endpoints: string[]): string {
  const shards = endpoints.map((endpoint) => [createReplica(endpoint)]);
  return formatFleet({ bundles: new Map([['ctr', [{ shardNum: endpoints.length, shards }]]]) });
}

function listEndpoints(fleet: Fleet): string[] {
  return fleet.bundles
    .get('ctr')![0]!
    .shards.flat()
    .map(({ data }) => data);
}

function open(): { file: FleetFile; invalid: CubeError[] } {
  const invalid: CubeError[] = [];
  const file = new FleetFile(path, { onInvalid: (error) => invalid.push(error), clock });
  return { file, invalid };
}

test('a changed file takes effect within a second; else the object is the same', () => {
  writeFileSync(path, fleetOn('127.0.0.1:1'));
  const { file, invalid } = open();
  const first = file.current();
  assert.deepEqual(listEndpoints(first), ['127.0.0.1:1']);
  nowMs += 1_500;
  assert.equal(file.current(), first);
  writeFileSync(path, fleetOn('127.0.0.1:1', '127.0.0.1:2'));
  assert.equal(file.current(), first, 'looked at a moment ago');
  nowMs += 1_000;
  const second = file.current();
  assert.deepEqual(listEndpoints(second), ['127.0.0.1:1', '127.0.0.1:2']);
  assert.equal(file.current(), second);
  assert.deepEqual(invalid, []);
});

test('an invalid file keeps the previous fleet, and is reported once', () => {
  writeFileSync(path, fleetOn('127.0.0.1:1'));
  const { file, invalid } = open();
  const first = file.current();
  const broken = [
    '{ "format": 1, "bundles": { "ctr": [',
    fleetOn('127.0.0.1:1').replace('"shardNum": 1', '"shardNum": 7'),
  ];
  for (const text of broken) {
    writeFileSync(path, text);
    for (let i = 0; i < 3; i++) {
      nowMs += 1_000;
      assert.equal(file.current(), first);
    }
  }
  assert.equal(invalid.length, 2);
  assert.match(invalid[0]!.message, /fleet\.json: not JSON/);
  assert.match(
    invalid[1]!.message,
    /fleet\.json: bundles\.ctr\[0\]\.shards: expected an array of at least 7/,
  );
  unlinkSync(path);
  nowMs += 1_000;
  assert.equal(file.current(), first);
  assert.equal(invalid.at(-1)?.code, 'NOT_FOUND');
  writeFileSync(path, fleetOn('127.0.0.1:9'));
  nowMs += 1_000;
  assert.deepEqual(listEndpoints(file.current()), ['127.0.0.1:9']);
  assert.equal(invalid.length, 3);
});

test('at the start the file must exist and be valid', () => {
  assert.throws(open, { code: 'NOT_FOUND' });
  writeFileSync(path, '[]');
  assert.throws(open, { code: 'INVALID_ARGUMENT' });
});
