import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { inspect } from 'node:util';
import fc from 'fast-check';
import type { CubeError } from '../../lib/core/errors.ts';
import {
  createFileSource,
  createKeyFile,
  EncryptionKey,
  KeyRing,
  parseKeys,
} from '../../lib/platform/encryption-keys.ts';
import { parseCommand, useKeys } from '../../lib/platform/encryption-options.ts';
import { openSealedBytes, sealBytes } from '../../lib/platform/sealed-file.ts';

const folder = mkdtempSync(join(tmpdir(), 'hypercube-keys-'));
after(() => rmSync(folder, { recursive: true }));
const text = (content: string): Uint8Array => Buffer.from(content);
const ONE = 'ab'.repeat(32);
const TWO = 'CD'.repeat(32);

function read(content: string): string[] {
  return parseKeys(text(content), 'keys').map(({ keyId }) => keyId);
}

test('a key file has one key on a line, comments and empty lines', () => {
  assert.equal(read(`# first\n${ONE}\r\n\n  ${TWO}  \n# end`).length, 2);
  assert.deepEqual(read(ONE), read(ONE.toUpperCase()));
  assert.notDeepEqual(read(ONE), read(TWO));
});

test('another file is refused without a word of it', () => {
  const wrong: [string, RegExp][] = [
    ['', /has no key/],
    ['# nothing\n', /has no key/],
    [`${ONE}\n${ONE.slice(1)}\n`, /line 2: is not a key/],
    [`${ONE}00`, /line 1: is not a key/],
    [`g${ONE.slice(1)}`, /line 1: is not a key/],
    [`${ONE}\n${ONE}`, /the same key twice/],
  ];
  for (const [content, message] of wrong) {
    assert.throws(
      () => read(content),
      (error: CubeError) => message.test(error.message) && !error.message.includes(ONE.slice(2)),
    );
  }
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
      try {
        parseKeys(bytes, 'keys');
      } catch (error) {
        assert.equal((error as CubeError).code, 'INVALID_ARGUMENT');
      }
      assert.ok(
        bytes.every((byte) => byte === 0),
        'the text is overwritten',
      );
    }),
  );
});

test('a key in place of its file, an empty name and what is no regular file are refused', () => {
  const use = (file: string): void => useKeys({ file, command: undefined }, 'flags', new KeyRing());
  const isSilent = (error: CubeError): boolean => !error.message.includes(ONE);
  assert.throws(
    () => use(ONE),
    (error: CubeError) => isSilent(error) && /keys are never arguments/.test(error.message),
  );
  assert.throws(() => use(''), /the name of the file of encryption keys is empty/);
  assert.throws(() => use('/dev/zero'), /\/dev\/zero: is not a regular file/);
  const pipe = join(folder, 'pipe');
  execFileSync('mkfifo', [pipe]);
  assert.throws(() => use(pipe), /pipe: is not a regular file/);
  assert.throws(() => use(folder), /is not a regular file/);
  const large = join(folder, 'large');
  writeFileSync(large, '#'.repeat(70_000));
  assert.throws(() => use(large), /more than the limit of 65536 bytes/);
});

test('a key is never printed', () => {
  const key = new EncryptionKey(Buffer.from(ONE, 'hex'));
  const ring = new KeyRing([key]);
  const printed =
    inspect([key, ring], { depth: 9, showHidden: true }) + JSON.stringify([ring, key]);
  assert.ok(!printed.toLowerCase().includes(ONE) && !printed.includes('ab ab ab'));
});

test('keygen makes a file for its owner only, and never replaces one', () => {
  const path = join(folder, 'new.key');
  const { keyId } = createKeyFile(path);
  assert.equal(statSync(path).mode & 0o077, 0);
  const ring = new KeyRing();
  ring.use(createFileSource(path));
  assert.deepEqual(ring.keyIds, [keyId]);
  assert.throws(() => createKeyFile(path), /exists; give the new key another file/);
});

test('a changed key file is read when a key is missing; a damaged one keeps the old keys', () => {
  const path = join(folder, 'rotating');
  const replace = (content: string): void => {
    writeFileSync(`${path}.new`, content);
    renameSync(`${path}.new`, path);
  };
  replace(ONE);
  const ring = new KeyRing();
  ring.use(createFileSource(path));
  const sealWith = (hex: string): Uint8Array => {
    const key = new EncryptionKey(Buffer.from(hex, 'hex'));
    return sealBytes(text('rows'), { contentId: '0'.repeat(32), sha256: '1'.repeat(64) }, key);
  };
  const open = (hex: string): string =>
    Buffer.from(openSealedBytes(sealWith(hex), 'file', ring)).toString();
  assert.throws(() => open(TWO), /is encrypted with key/);
  replace('damaged');
  assert.throws(() => open(TWO), /is encrypted with key/);
  assert.equal(open(ONE), 'rows');
  replace(`${TWO}\n${ONE}`);
  assert.equal(open(TWO), 'rows');
});

test('a command is run without a shell, and its output is in no error', () => {
  assert.deepEqual(parseCommand('  vault read  -field=key x '), [
    'vault',
    'read',
    '-field=key',
    'x',
  ]);
  assert.deepEqual(parseCommand('["a b", "c;d"]'), ['a b', 'c;d']);
  for (const wrong of ['', '  ', '[', '[1]', '[]']) {
    assert.throws(() => parseCommand(wrong), /the command for encryption keys/);
  }
  const print = (script: string): string => JSON.stringify([process.execPath, '-e', script]);
  const ring = new KeyRing();
  useKeys({ file: undefined, command: print(`console.log('${ONE}')`) }, 'flags', ring);
  assert.equal(ring.keyIds.length, 1);
  const failing = print(`console.log('${ONE}'); console.error('${ONE}'); process.exit(3)`);
  for (const [command, reason] of [
    [failing, /ended with exit code 3/],
    ['/no/such/program', /failed \(ENOENT\)/],
    [print(`console.log('${ONE.slice(1)}')`), /is not a key/],
    [print(`process.stdout.write('x'.repeat(200000))`), /failed \(ENOBUFS\)/],
    [`${process.execPath} -p "1" > ${join(folder, 'shell')}`, /is not a key|exit code/],
  ] as const) {
    assert.throws(
      () => useKeys({ file: undefined, command }, 'flags', new KeyRing()),
      (error: CubeError) => reason.test(error.message) && !error.message.includes(ONE.slice(2)),
    );
  }
  assert.throws(() => statSync(join(folder, 'shell')), /ENOENT/);
  assert.throws(() => useKeys({ file: 'a', command: 'b' }, 'both flags'), /both flags: give one/);
});
