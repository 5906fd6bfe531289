/** Log files: rotation, whole lines, and files that cannot be written. */
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { createLogger } from '../../lib/platform/logs.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

function readMessages(path: string): string[] {
  const lines = readFileSync(path, 'utf8').split('\n');
  assert.equal(lines.pop(), '', 'the last line is whole');
  return lines.map((line) => JSON.parse(line).msg);
}

test('a log file is rotated by size, and the oldest files are removed', (t) => {
  const folder = temporaryFolder(t);
  const path = join(folder, 'logs', 'serving.log');
  const logger = createLogger('test', { file: { path, bytesMax: 1_000, filesMax: 3 } });
  const messages = Array.from({ length: 100 }, (_, i) => `message ${i}`);
  for (const message of messages) logger.info(message);
  const names = ['serving.log', 'serving.log.1', 'serving.log.2'];
  assert.deepEqual(readdirSync(join(folder, 'logs')).sort(), names);
  const kept = names.toReversed().flatMap((name) => readMessages(join(folder, 'logs', name)));
  assert.deepEqual(kept, messages.slice(-kept.length));
  assert.ok(kept.length > 10);
});

test('a log file in text format has no terminal colours', (t) => {
  const path = join(temporaryFolder(t), 'serving.log');
  const file = { path, bytesMax: 1 << 20, filesMax: 1 };
  createLogger('test', { format: 'text', file }).warn({ model: 'ctr' }, 'it is slow');
  const text = readFileSync(path, 'utf8');
  assert.match(text, /WARN.*it is slow.*"model":"ctr"/);
  assert.ok(!text.includes('\u001b'));
});

const hasFullDevice = existsSync('/dev/full');
test('lines that the disk does not take go to stderr', { skip: !hasFullDevice }, () => {
  const logs = join(import.meta.dirname, '..', '..', 'lib', 'platform', 'logs.js');
  const file = JSON.stringify({ path: '/dev/full', bytesMax: 1_000, filesMax: 1 });
  const script = `import { createLogger } from ${JSON.stringify(logs)};
    createLogger('test', { file: ${file} }).info('not lost');`;
  const { stderr, status } = spawnSync(
    process.execPath,
    ['--input-type=module', '--eval', script],
    { encoding: 'utf8' },
  );
  assert.equal(status, 0, stderr);
  assert.match(stderr, /"msg":"not lost"/);
});

test('a log file that is a device is never renamed, and a named pipe is refused', (t) => {
  const folder = temporaryFolder(t);
  const path = join(folder, 'serving.log');
  symlinkSync('/dev/null', path);
  const logger = createLogger('test', { file: { path, bytesMax: 100, filesMax: 3 } });
  for (let i = 0; i < 10; i++) logger.info(`message ${i}`);
  assert.deepEqual(readdirSync(folder), ['serving.log']);
  const pipe = join(folder, 'pipe.log');
  execFileSync('mkfifo', [pipe]);
  const file = { path: pipe, bytesMax: 100, filesMax: 3 };
  assert.throws(() => createLogger('test', { file }), /not a regular file/);
});
