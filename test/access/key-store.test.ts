/** Key files: commands, authentication, rereading, damage. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { AccessGate, type FindRequirement } from '../../lib/access/access-gate.ts';
import { generateKey, parseKeyFile } from '../../lib/access/api-keys.ts';
import { readApiKey } from '../../lib/access/caller.ts';
import { KeyStore } from '../../lib/access/key-store.ts';
import { UsageTable } from '../../lib/access/usage-table.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { getErrorCode } from '../support/errors.ts';
import { KeyCommands } from './support/key-commands.ts';

const logger = createLogger('test', { level: 'silent' });
const METHOD = { protocol: 'http', verb: 'POST', path: '/v1/ctr::predict' } as const;

class Place {
  readonly keys: KeyCommands;
  readonly clock = { ms: 0, nowMs: () => this.clock.ms, wallMs: () => Date.now() + this.clock.ms };
  readonly store: KeyStore;
  readonly gate: AccessGate;

  constructor(t: TestContext, findRequirement: FindRequirement = () => 'predict') {
    this.keys = new KeyCommands(join(temporaryFolder(t), 'keys.json'));
    this.keys.add('first', '--scope', 'metrics');
    this.store = new KeyStore(this.keys.file, logger, this.clock);
    const usage = new UsageTable(undefined, logger, this.clock);
    this.gate = new AccessGate({ keys: this.store, findRequirement, usage, clock: this.clock });
  }

  /** Lets the store look at the file again. */
  later(): void {
    this.clock.ms += 10_000;
  }

  call(authorization: string | undefined, apiKey?: string): string {
    const head = { authorization, apiKey, peerAddress: '127.0.0.1' };
    try {
      return this.gate.admit(head, METHOD).principal.id;
    } catch (error) {
      const { code, message } = CubeError.from(error);
      return `${code}: ${message}`;
    }
  }
}

test('keys are added, rotated, revoked and expired while a server runs', (t) => {
  const place = new Place(t);
  const { keys } = place;
  assert.throws(() => new KeyCommands(`${keys.file}.none`).run('list'), { code: 'NOT_FOUND' });
  const key = keys.add('ads', '--scope', 'predict');
  assert.match(place.call(`Bearer ${key}`), /^UNAUTHENTICATED/, 'the file is not looked at yet');
  place.later();
  for (const [authorization, apiKey] of [
    [`Bearer ${key}`, undefined],
    [`bearer  ${key}`, undefined],
    [key, undefined],
    [undefined, key],
  ] as const) {
    assert.equal(place.call(authorization, apiKey), 'ads');
  }
  const rotated = keys.run('rotate', '--id', 'ads', '--grace', '1h').at(-1) ?? '';
  place.later();
  assert.equal(place.call(key), 'ads');
  assert.equal(place.call(rotated), 'ads');
  place.clock.ms += 3_700_000;
  assert.match(place.call(key), /^UNAUTHENTICATED/);
  assert.equal(place.call(rotated), 'ads');
  keys.run('expire', '--id', 'ads', '--at', '30d');
  place.later();
  assert.equal(place.call(rotated), 'ads');
  keys.run('revoke', '--id', 'ads');
  place.later();
  assert.match(place.call(rotated), /^UNAUTHENTICATED/);
  const list = keys.run('list').join('\n');
  assert.match(list, /ads {2}hck_.{6}… {2}revoked {2}predict/);
});

test('unknown, revoked, expired and malformed keys get the same answer', (t) => {
  const place = new Place(t);
  const revoked = place.keys.add('revoked', '--scope', 'predict');
  place.keys.run('revoke', '--id', 'revoked');
  const expired = place.keys.add('expired', '--scope', 'predict', '--expires', '0m');
  place.later();
  const unknown = generateKey().key;
  const answers = [
    revoked,
    expired,
    unknown,
    `${unknown}x`,
    'x',
    'x'.repeat(100_000),
    '\u0000',
  ].map((key) => place.call(`Bearer ${key}`));
  assert.equal(new Set(answers).size, 1, answers.join('\n'));
  const [answer = ''] = answers;
  assert.match(answer, /^UNAUTHENTICATED: the API key is not valid/);
  assert.doesNotMatch(answer, /hck_/);
});

test('a key without the scope is denied; without a key the error names the scope', (t) => {
  const place = new Place(t);
  const key = place.keys.add('metrics-only', '--scope', 'metrics,predict:other');
  const other = place.keys.add('tables-only', '--scope', 'tables');
  place.later();
  assert.equal(place.call(key), 'metrics-only', 'one model is enough to predict at all');
  assert.match(place.call(other), /^DENIED: key tables-only lacks the scope predict/);
  assert.match(
    place.call(undefined),
    /^UNAUTHENTICATED: .*needs an API key with the scope predict/,
  );
});

test('scopes may be in one option or in several', (t) => {
  const { keys } = new Place(t);
  keys.add('both', '--scope', 'tables,metrics', '--scope', 'predict', '--scope', 'metrics');
  const [line] = keys.run('list').filter((text) => text.startsWith('both'));
  assert.match(line ?? '', / tables,metrics,predict$/);
});

test('a damaged, half-written or missing file leaves the last keys valid', (t) => {
  const place = new Place(t);
  const key = place.keys.add('ads', '--scope', 'predict');
  place.later();
  assert.equal(place.call(key), 'ads');
  const { file } = place.keys;
  const good = readFileSync(file, 'utf8');
  for (const text of [
    '',
    good.slice(0, good.length / 2),
    '{}',
    '[]',
    good.replace('predict', 'x'),
  ]) {
    writeFileSync(file, text);
    place.later();
    assert.equal(place.call(key), 'ads');
    assert.notEqual(
      getErrorCode(() => new KeyStore(file, logger, place.clock)),
      'no error',
    );
  }
  rmSync(file);
  place.later();
  assert.equal(place.call(key), 'ads');
  writeFileSync(`${file}.new`, good.replace('"ads"', '"renamed"'));
  renameSync(`${file}.new`, file);
  place.later();
  assert.equal(place.call(key), 'renamed');
});

test('a named pipe in place of the key file leaves the last keys valid and blocks nothing', (t) => {
  const place = new Place(t);
  const key = place.keys.add('ads', '--scope', 'predict');
  place.later();
  assert.equal(place.store.find(key).key?.id, 'ads');
  rmSync(place.keys.file);
  execFileSync('mkfifo', [place.keys.file]);
  place.later();
  assert.equal(place.store.find(key).key?.id, 'ads');
  assert.throws(() => new KeyStore(place.keys.file, logger, place.clock), /not a regular file/);
});

test('no key file that differs from a valid one crashes the parser', (t) => {
  const { keys } = new Place(t);
  const good = readFileSync(keys.file);
  fc.assert(
    fc.property(fc.nat(good.length - 1), fc.integer({ min: 0, max: 255 }), (at, byte) => {
      const bytes = Buffer.from(good);
      bytes[at] = byte;
      const code = getErrorCode(() => parseKeyFile(bytes.toString(), 'keys.json'));
      assert.ok(code === 'no error' || code === 'INVALID_ARGUMENT', code);
    }),
  );
});

test('the file has no key, is private, and ids are not used twice', (t) => {
  const { keys } = new Place(t);
  const key = keys.add('ads', '--scope', 'predict', '--daily-rows', '1000', '--weight', '2.5');
  const text = readFileSync(keys.file, 'utf8');
  assert.doesNotMatch(text, new RegExp(key.slice(12)));
  assert.equal(statSync(keys.file).mode & 0o777, 0o600);
  const [ads] = parseKeyFile(text, 'keys.json').keys.filter(({ id }) => id === 'ads');
  assert.deepEqual(ads?.limits, { dailyRows: 1000, weight: 2.5 });
  assert.equal(
    getErrorCode(() => keys.add('ads', '--scope', 'predict')),
    'CONFLICT',
  );
  assert.equal(
    getErrorCode(() => keys.run('revoke', '--id', 'nobody')),
    'NOT_FOUND',
  );
});

test('daily usage survives a restart', (t) => {
  const { keys, clock } = new Place(t);
  keys.add('ads', '--scope', 'predict', '--daily-requests', '2');
  const path = join(keys.file, '..', 'usage.json');
  const [, key] = parseKeyFile(readFileSync(keys.file, 'utf8'), 'keys.json').keys;
  assert.ok(key);
  for (const expected of ['no error', 'no error', 'RATE_LIMITED']) {
    const table = new UsageTable(path, logger, clock);
    const { usage } = table.getPrincipal(key);
    assert.equal(
      getErrorCode(() => usage?.enter()),
      expected,
    );
    table.close();
  }
  writeFileSync(path, '{');
  assert.equal(
    getErrorCode(() => new UsageTable(path, logger, clock)),
    'INVALID_ARGUMENT',
  );
});

test('every form of a credential is read, and an empty one is none', () => {
  for (const [authorization, apiKey, expected] of [
    [undefined, undefined, undefined],
    ['', '', undefined],
    ['Bearer abc', undefined, 'abc'],
    ['BEARER abc ', undefined, 'abc'],
    ['abc', undefined, 'abc'],
    ['Bearer abc', 'def', 'def'],
    ['Basic abc', undefined, 'Basic abc'],
  ] as const) {
    assert.equal(readApiKey({ authorization, apiKey }), expected);
  }
});

test('errors show nothing of a file, which may hold another secret', (t) => {
  const { keys } = new Place(t);
  const key = keys.add('ads', '--scope', 'predict');
  const good = readFileSync(keys.file, 'utf8');
  const { keys: stored } = JSON.parse(good) as { keys: { sha256: string; prefix: string }[] };
  for (const text of [
    'hunter2-is-a-token',
    `${key}\n`,
    good.replace(stored[0]?.sha256 ?? '?', key),
    good.replace(stored[0]?.prefix ?? '?', key),
    good.replace('{', key),
  ]) {
    assert.throws(
      () => parseKeyFile(text, 'keys.json'),
      ({ message }: Error) => /^keys\.json: /.test(message) && !/hck_|hunter2/.test(message),
      text,
    );
  }
});
