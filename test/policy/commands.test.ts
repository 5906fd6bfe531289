/**
 * Every command of every program prints JSON, and has a dry run if it writes. The commands come
 * from the definitions of the programs; only the exceptions are listed here.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { createProgram as createAgent } from '../../cube-agent/cli.ts';
import { createProgram as createServer } from '../../cube-server/cli.ts';
import { addDryRunOption, addJsonOption, type Command, createCli } from '../../lib/platform/cli.ts';
import { createProgram as createServing } from '../../serving/cli.ts';
import { createLoadRedisCli } from '../../serving/load-redis.ts';
import { createProgram as createScore } from '../../serving/score/cli.ts';
import { createProgram as createClient } from '../../tools/ctr-client/cli.ts';
import { createProgram as createBuilder } from '../../tools/cube-builder/cli.ts';
import { createProgram as createCheck } from '../../tools/cube-check/cli.ts';
import { createProgram as createCubeCli } from '../../tools/cube-cli/cli.ts';
import { createProgram as createGenerator } from '../../tools/generate-rows/cli.ts';
import { createProgram as createKeys } from '../../tools/keys/cli.ts';
import { createProgram as createPipeline } from '../../tools/pipeline/cli.ts';
import { createProgram as createPrune } from '../../tools/prune-model/cli.ts';
import { createProgram as createFeatures } from '../../tools/prune-model/features/cli.ts';
import { runCommand } from '../support/commands.ts';

const ROOT = join(import.meta.dirname, '..', '..', '..');

/** They run until they are stopped, and log. */
const SERVICES = ['cube-server', 'serving', 'cube-agent run', 'cube-agent controller'];

/** They write nothing, or only reports to files that an option names. */
const READERS = [
  'cube-agent status',
  'cube-agent doctor',
  'cube-agent history',
  'cube-agent experiment show',
  'cube-agent experiment history',
  'cube-agent policy show',
  'cube-agent fleet validate',
  'cube-agent fleet show',
  'cube-check',
  'cube-cli seek',
  'cube-cli stat',
  'cube-cli sample',
  'cube-cli diff',
  'ctr-client',
  'features check',
  'keys list',
  'pipeline analyze',
];

interface NamedCommand {
  readonly name: string;
  readonly command: Command;
}

/** A program or a group with options of its own is a command too. */
function listCommands(command: Command, prefix = ''): NamedCommand[] {
  const name = prefix + command.name();
  const own = command.options.filter(({ long }) => long !== '--version' || prefix !== '');
  const isRunnable = own.length > 0 || command.registeredArguments.length > 0;
  return [
    ...(isRunnable ? [{ name, command }] : []),
    ...command.commands.flatMap((one) => listCommands(one, `${name} `)),
  ];
}

function findViolations(commands: readonly NamedCommand[]): string[] {
  const names = commands.map(({ name }) => name);
  const unknown = [...SERVICES, ...READERS].filter((name) => !names.includes(name));
  const lacking = commands.flatMap(({ name, command }) => {
    if (SERVICES.includes(name)) return [];
    const required = READERS.includes(name) ? ['--json'] : ['--json', '--dry-run'];
    const flags = command.options.map(({ long }) => long);
    return required.filter((flag) => !flags.includes(flag)).map((flag) => `${name} lacks ${flag}`);
  });
  return [...unknown.map((name) => `${name} is listed here, but no program has it`), ...lacking];
}

const AGENT = await createAgent();
const PROGRAMS = [
  createPrune(async () => undefined),
  createFeatures(),
  createGenerator(),
  createBuilder(),
  createCheck(),
  createCubeCli(),
  AGENT,
  createServer(),
  createServing(),
  createLoadRedisCli(),
  createScore(),
  createClient(),
  createKeys(),
  createPipeline(),
];
const COMMANDS = PROGRAMS.flatMap((program) => listCommands(program));

test('every command has --json, and every command that writes has --dry-run', () => {
  assert.ok(COMMANDS.length >= 40, `only ${COMMANDS.length} commands`);
  assert.deepEqual(findViolations(COMMANDS), []);
});

test('no program is missing above', async () => {
  const { code, stdout, stderr } = await runCommand('tools/hypercube/main.js', '--help');
  assert.equal(code, 0, stderr);
  const [, list = ''] = /Tools[^\n]*\n(.*?)\n\n/s.exec(stdout) ?? [];
  const tools = [...list.matchAll(/^ {2}(\S+) /gm)].map(([, name]) => name).sort();
  const { bin } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const packaged = Object.keys(bin).filter((name) => name !== 'hypercube');
  const known = [...new Set(PROGRAMS.map((program) => program.name()))].sort();
  assert.deepEqual(tools, known);
  assert.deepEqual(
    packaged.filter((name) => !known.includes(name)),
    [],
  );
});

test('cube-agent loads the module of the command that runs', async () => {
  for (const { name: command } of listCommands(AGENT)) {
    const [, name = ''] = command.split(' ');
    const alone = (await createAgent(name)).commands.map((one) => one.name());
    assert.ok(alone.includes(name), `${name}: ${alone}`);
    assert.ok(alone.length < AGENT.commands.length, `${name} loads all modules`);
  }
});

test('a new command without them is found', () => {
  const program = createCli('cube-agent', 'canary');
  program.command('erase').requiredOption('--bundle <name>');
  addJsonOption(program.command('print').argument('<x>'));
  addDryRunOption(addJsonOption(program.command('write')));
  assert.deepEqual(findViolations([...COMMANDS, ...listCommands(program)]), [
    'cube-agent erase lacks --json',
    'cube-agent erase lacks --dry-run',
    'cube-agent print lacks --dry-run',
  ]);
});
