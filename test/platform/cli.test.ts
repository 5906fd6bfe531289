/** The base of command lines: help, required options, environment variables. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  advanced,
  createCli,
  Option,
  optionWithEnv,
  runCli,
  setEnvironmentRule,
} from '../../lib/platform/cli.ts';

test("help marks required options; a usage error names the command's help", async (t) => {
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
  program.command('log').command('set').option('--key <key>', 'what to set');
  assert.match(command.helpInformation(), /what to act on \(required\)\n/);
  assert.match(command.helpInformation(), /how \(default: fast\)\n.*only say\n/);
  assert.equal(await runCli(program, ['act']), 2);
  assert.match(text, /'--file <file>' not specified\n\(tool act --help shows the options\)\n/);
  assert.equal(await runCli(program, ['log', 'set', '--wrong']), 2);
  assert.match(text, /unknown option '--wrong'\n\(tool log set --help shows the options\)\n$/);
});

test('help wraps, and lists environment variables once', () => {
  const program = createCli('tool', 'Does something.')
    .addOption(optionWithEnv('--memory <bytes>', 'Memory budget', 'TOOL_MEMORY').default(4, '4GiB'))
    .option('--a-flag-that-is-much-too-long <value>', 'A description. '.repeat(10).trim());
  const help = program.helpInformation();
  assert.match(help, /^ {2}--memory <bytes> +Memory budget \(default: 4GiB\)$/m);
  assert.match(help, /\nEnvironment variables:\n.*\n {2}TOOL_MEMORY {2}--memory\n$/);
  assert.match(help, /^ {2}--a-flag-that-is-much-too-long <value>\n +A description\./m);
  for (const line of help.split('\n')) assert.ok(line.length <= 100, line);
});

test('an empty environment variable counts as unset', async (t) => {
  process.env['TOOL_TOKEN_FILE'] = '';
  t.after(() => delete process.env['TOOL_TOKEN_FILE']);
  const seen: unknown[] = [];
  const program = createCli('tool', 'Does something.');
  program
    .command('act')
    .addOption(optionWithEnv('--token-file <file>', 'Token file', 'TOOL_TOKEN_FILE'))
    .action(({ tokenFile }) => {
      seen.push(tokenFile);
    });
  await runCli(program, ['act']);
  process.env['TOOL_TOKEN_FILE'] = 'token';
  await runCli(program, ['act']);
  assert.deepEqual(seen, [undefined, 'token']);
});

test('a rule replaces the list of environment variables, except for its exceptions', () => {
  const program = createCli('tool', 'Does something.')
    .addOption(optionWithEnv('--memory <bytes>', 'Memory budget', 'TOOL_MEMORY'))
    .addOption(optionWithEnv('--token <file>', 'Token file', 'SECRET'));
  setEnvironmentRule(program, {
    text: 'TOOL_ and the option in capitals.',
    variable: ({ long }) => `TOOL_${long?.slice(2).toUpperCase()}`,
  });
  assert.match(program.helpInformation(), /capitals\.\n {2}SECRET {2}--token\n$/);
});

test('advanced options appear only in --help-all, which --help mentions', async (t) => {
  const texts: string[] = [];
  t.mock.method(process.stdout, 'write', (text: string) => texts.push(text) > 0);
  const create = () => {
    const program = createCli('tool', 'Does something.').requiredOption('--file <file>', 'File');
    return program.addOption(advanced(new Option('--batch-us <us>', 'Wait')));
  };
  assert.equal(await runCli(create(), ['--help']), 0);
  assert.equal(await runCli(create(), ['--help-all']), 0);
  const [everyday = '', all = ''] = texts;
  assert.doesNotMatch(everyday, /--batch-us/);
  assert.match(everyday, /--help-all +Show all options \(1 more\)$/m);
  assert.match(all, /--file <file>/);
  assert.match(all, /--batch-us <us> +Wait$/m);
});
