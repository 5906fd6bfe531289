/**
 * Every protocol of ctr-client asks a real serving process for equal scores, whatever the rows look
 * like, and believes no garbage.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { slotSpecToJson } from '../../../lib/core/slots.ts';
import {
  openProtocolClient,
  PROTOCOLS,
} from '../../../tools/ctr-client/protocols/open-protocol.ts';
import { readRowsFile } from '../../../tools/ctr-client/rows/rows-file.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import {
  BUNDLE,
  hashKey,
  ToyBundle,
  type ToyRow,
  toTsv,
  toyRows,
} from '../../serving/support/toy-bundle.ts';
import { startLocal, ToyRepository } from '../../serving/support/toy-service.ts';
import { ctrClient, startStandIn } from './client-process.ts';
import { assertScores, readScores, TOLERANCE } from './scores.ts';

function jsonRow({ dense, categorical }: ToyRow): { dense: unknown[]; categorical: unknown[] } {
  const orNull = (value: number | string): number | string | null =>
    value === '' || Number.isNaN(value) ? null : value;
  return { dense: dense.map(orNull), categorical: categorical.map(orNull) };
}

function namedRow(row: ToyRow): object {
  const { dense, categorical } = jsonRow(row);
  const [I1, I2] = dense;
  const [C1, C2, C3] = categorical;
  return { I1, I2, C1, C2, C3, label: 1 };
}

/** Hashed and scaled as the toy bundle's spec says. */
function keyRow({ dense: [i1, i2], categorical }: ToyRow): object {
  const keys = categorical.map((text, slot) => String(hashKey(slot, text)));
  const log = Math.log1p(Math.max(Number.isNaN(i1) ? 0 : i1!, 0));
  return { keys, scaled: [(log - 1.25) * 0.5, i2! * 0.125] };
}

test('gets equal scores by every protocol and form of row', async (t) => {
  const toy = new ToyBundle({ version: '1', seed: 4, wide: true });
  const { serving } = await startLocal(t, [toy]);
  const folder = temporaryFolder(t);
  const rows = toyRows(50).map((row) => ({ ...row, dense: [row.dense[0]!, 3] }));
  const lines = (values: readonly object[]): string =>
    values.map((value) => `${JSON.stringify(value)}\n`).join('');
  const files: [string, string, readonly string[]][] = [
    ['rows.tsv', toTsv(rows), PROTOCOLS],
    ['rows.jsonl', lines(rows.map(jsonRow)), PROTOCOLS],
    ['named.jsonl', lines(rows.map(namedRow)), PROTOCOLS.filter((name) => name !== 'ctr-grpc')],
    ['golden.jsonl', lines(rows.map(keyRow)), ['ctr', 'ctr-grpc', 'paddle', 'paddle-rpc']],
  ];
  const shape = { name: BUNDLE, slotNum: 3, denseNum: 2, takesFeatures: true };
  const target = { url: serving.url, shape, connectionsMax: 1, timeoutMs: 10_000 };
  for (const [name, text, protocols] of files) {
    const file = join(folder, name);
    writeFileSync(file, text);
    const read = await readRowsFile(file, 5, 50);
    for (const protocol of PROTOCOLS) {
      if (!protocols.includes(protocol)) {
        const open = (): unknown =>
          openProtocolClient(protocol, target, read, toy.slotSpec.features);
        assert.throws(open, { code: 'UNSUPPORTED' }, `${name} by ${protocol}`);
        continue;
      }
      const caller = openProtocolClient(protocol, target, read, toy.slotSpec.features);
      const { probabilities } = await caller.prepareRequest(3, 50, '')();
      caller.close();
      rows.slice(3).forEach((row, i) => {
        const difference = Math.abs(probabilities[i]! - toy.score(row)[1]);
        assert.ok(difference < TOLERANCE, `${name} by ${protocol}, row ${i}: off by ${difference}`);
      });
    }
  }
  const output = join(folder, 'scores.tsv');
  const common = ['--endpoint', new URL(serving.url).host, '--rows'];
  const paddle = ['--protocol', 'paddle', '--batch', '7', '--output', output];
  const run = await ctrClient(...common, join(folder, 'rows.tsv'), ...paddle);
  assert.equal(run.exit, 0, run.stderr);
  assert.match(run.stdout, /versions +not reported by this protocol/);
  assertScores(output, toy, rows);
  const rpc = [...paddle.with(1, 'paddle-rpc'), '--workers', '2'];
  const overRpc = await ctrClient(...common, join(folder, 'rows.tsv'), ...rpc);
  assert.equal(overRpc.exit, 0, overRpc.stderr);
  assertScores(output, toy, rows);
  const keyed = await ctrClient(
    ...common,
    join(folder, 'rows.tsv'),
    ...rpc,
    '--experiment-key',
    'random',
  );
  assert.match(keyed.stderr, /baidu_std has no place for an experiment key; use --protocol paddle/);
});

test('sends bags by every protocol', async (t) => {
  const toy = new ToyBundle({ version: '1', seed: 4 });
  const [c1, c2, c3] = toy.slotSpec.features!.slots;
  assert.ok(c1 && c2 && c3);
  const slots = [c1, { ...c2, pooling: 'sum' as const }, c3];
  const features = { ...toy.slotSpec.features!, slots, separator: '|' };
  const repository = new ToyRepository(t);
  const slotsJson = JSON.stringify(slotSpecToJson({ ...toy.slotSpec, features }));
  await repository.publish(toy, { 'slots.json': new TextEncoder().encode(slotsJson) });
  await repository.activate('1');
  const serving = await repository.startLocal(t);
  await serving.waitUntilReady();
  const bags = [['f1', 'f2', 'f3'], [], ['f4'], ['f1', 'f1']];
  const rows = bags.map((bag, i) => ({ dense: [i, null], categorical: [`f${i}`, bag, null] }));
  const folder = temporaryFolder(t);
  const files = {
    'rows.jsonl': rows.map((row) => `${JSON.stringify(row)}\n`).join(''),
    'rows.tsv': rows.map((_, i) => `${i}\t\tf${i}\t${bags[i]!.join('|')}\t\n`).join(''),
  };
  const shape = { name: BUNDLE, slotNum: 3, denseNum: 2, takesFeatures: true };
  const target = { url: serving.url, shape, connectionsMax: 1, timeoutMs: 10_000 };
  let expected: number[] | undefined;
  for (const [name, text] of Object.entries(files)) {
    writeFileSync(join(folder, name), text);
    const read = await readRowsFile(join(folder, name), 5, 50);
    for (const protocol of PROTOCOLS) {
      const caller = openProtocolClient(protocol, target, read, features);
      const scores = Array.from((await caller.prepareRequest(0, 4, '')()).probabilities);
      caller.close();
      expected ??= scores;
      scores.forEach((score, i) => {
        const difference = Math.abs(score - expected![i]!);
        assert.ok(difference < TOLERANCE, `${name} by ${protocol}, row ${i}: off by ${difference}`);
      });
    }
  }
  const plain = { dense: [2, Number.NaN], categorical: ['f2', 'f4', ''] };
  assert.ok(Math.abs(expected![2]! - toy.score(plain)[1]) < TOLERANCE);
  assert.equal(new Set(expected).size, 4);
  const output = join(folder, 'scores.tsv');
  const flags = ['--endpoint', new URL(serving.url).host, '--output', output];
  for (const protocol of PROTOCOLS) {
    const rows = ['--rows', join(folder, 'rows.tsv'), '--protocol', protocol];
    const run = await ctrClient(...flags, ...rows);
    assert.equal(run.exit, 0, run.stderr);
    readScores(output).forEach(({ probability }, i) => {
      const difference = Math.abs(Number(probability) - expected![i]!);
      assert.ok(difference < TOLERANCE, `${protocol} without --slots, row ${i} differs`);
    });
  }
});

test('names --slots when the endpoint does not give the features', async (t) => {
  const file = join(temporaryFolder(t), 'rows.tsv');
  writeFileSync(file, '5\ta\n');
  const url = await startStandIn(t, () => '{}');
  const run = await ctrClient('--rows', file, '--endpoint', url, '--protocol', 'tfs');
  assert.equal(run.exit, 1);
  assert.match(run.stderr, /cannot read the features of m: .*give its slots\.json with --slots/);
});

test('refuses invalid responses by every protocol over HTTP', async (t) => {
  const folder = temporaryFolder(t);
  const file = join(folder, 'rows.tsv');
  writeFileSync(file, '0\t5\ta\n1\t6\tb\n');
  const output = '{"name":"p","shape":[2,1]';
  const garbage = [
    'not JSON',
    'null',
    '[]',
    `{"outputs":[${output},"data":["x",null]}],"model_version":"1"}`,
    `{"outputs":[${output},"parameters":{"binary_data_size":8}}]}`,
    '{"outputs":{"p":[[1],[2],[3]]},"probabilities":[0.5],"version":"1","tables_version":"1"}',
    '{"outputs":[{"tensor":[{"float_data":[0.5]}]}]}',
  ];
  let answer = '';
  const url = await startStandIn(t, () => answer);
  const rows = await readRowsFile(file, 2, 2);
  const { features } = new ToyBundle({ version: '1', seed: 1 }).slotSpec;
  assert.ok(features);
  const spec = {
    ...features,
    slots: features.slots.slice(0, 1),
    dense: { ...features.dense!, features: features.dense!.features.slice(0, 1) },
  };
  const shape = { name: 'm', slotNum: 1, denseNum: 1, takesFeatures: true };
  const target = { url, shape, connectionsMax: 1, timeoutMs: 10_000 };
  for (const protocol of PROTOCOLS.filter((name) => !['ctr-grpc', 'paddle-rpc'].includes(name))) {
    const caller = openProtocolClient(protocol, target, rows, spec);
    t.after(() => caller.close());
    const send = caller.prepareRequest(0, 2, '');
    for (const text of garbage) {
      answer = text;
      await assert.rejects(send, { code: 'INTERNAL' }, `${protocol} takes ${text}`);
    }
  }
  const run = await ctrClient('--rows', file, '--endpoint', url);
  assert.match(run.stdout, /rows +0 of 2 predicted/);
  assert.match(run.stderr, /1 of 1 requests failed/);
  assert.equal(run.exit, 1);
});
