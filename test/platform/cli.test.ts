/** What every command line says: which options must be given, and where the help of a command is. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createCli, runCli } from '../../lib/platform/cli.ts';

test('help marks what must be given; a wrong command line names the help of its command', async (t) => {
  let text = '';
  const catchText = (chunk: string): boolean => {
    text += chunk;
    return true;
  };
  t.mock.method(process.stderr, 'write', catchText);
  const program = createCli('tool', 'Does something.');
  const command = program
    .command('act')
    .requiredOption('--file <file>', 'what to act on')
    .requiredOption('--mode <mode>', 'how', 'fast')
    .option('--dry', 'only say');
  assert.match(command.helpInformation(), /what to act on \(required\)\n/);
  assert.match(command.helpInformation(), /how \(default: "fast"\)\n.*only say\n/);
  assert.equal(await runCli(program, ['act']), 2);
  assert.match(text, /'--file <file>' not specified\n\(tool act --help shows the options\)\n/);
});
