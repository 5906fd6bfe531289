#!/usr/bin/env node
/**
 * `hypercube <tool> …` runs one of the programs, for `npx hypercube prune-model …`. The program
 * runs in this process and sees the command line as if it had been called by its own name.
 */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { createCli, runCli } from '../../lib/platform/cli.ts';
import { runProgram } from '../../lib/platform/program.ts';

/** Name, folder below `dist/`, and purpose of each program, in the order of their use. */
const TOOLS: readonly (readonly [name: string, folder: string, purpose: string])[] = [
  ['features', 'tools/prune-model/features', 'Write and check features.json of a model'],
  ['prune-model', 'tools/prune-model', 'Split a trained model into embedding tables and a graph'],
  ['cube-builder', 'tools/cube-builder', 'Build shards from tables and publish a version'],
  ['cube-check', 'tools/cube-check', 'Verify a layer file, a version, a repository or a server'],
  ['cube-cli', 'tools/cube-cli', 'Look up keys, sample rows, compare versions'],
  ['cube-agent', 'cube-agent', 'Activate, roll back, roll out and inspect versions'],
  ['cube-server', 'cube-server', 'Serve the lookups of one shard'],
  ['serving', 'serving', 'Answer predictions'],
  ['score', 'serving/score', 'Score a file of rows without a server'],
  ['ctr-client', 'tools/ctr-client', 'Send rows by any protocol; measure latency and quality'],
  ['pipeline', 'tools/pipeline', 'Say from a tracer where the time of a pipeline goes'],
  ['keys', 'tools/keys', 'Make, list, rotate and end API keys'],
  ['generate-rows', 'tools/generate-rows', 'Generate rows with a known ground truth'],
];

const [name = '--help'] = process.argv.slice(2);
const folder = TOOLS.find(([tool]) => tool === name)?.[1];
if (folder === undefined) {
  runProgram(() => printHelp(name));
} else {
  const main = join(import.meta.dirname, '..', '..', folder, 'main.js');
  process.argv.splice(1, 2, main);
  void import(pathToFileURL(main).href);
}

/** Prints the help, the version, or an error that names the tools. */
function printHelp(argument: string): Promise<number> {
  const program = createCli('hypercube', 'Runs one of the programs of Hypercube.')
    .usage('<tool> [options]')
    .addHelpText('after', formatTools())
    .argument('[tool]')
    .action((tool: string) => program.error(`error: unknown tool "${tool}"`));
  return runCli(program, [argument]);
}

function formatTools(): string {
  const lines = TOOLS.map(([tool, , purpose]) => `  ${tool.padEnd(14)} ${purpose}`);
  return `
Tools (each has --help):
${lines.join('\n')}

Examples:
  hypercube prune-model --model model.onnx --output out
  npx hypercube serving --help`;
}
