/** The command line of example-models. */
import { dirname, join } from 'node:path';
import { type Command, createCli, runCli } from '../../lib/platform/cli.ts';
import { makeFolder, replaceFile } from '../../lib/platform/files.ts';
import { type ExampleFiles, makeExampleFiles } from './example-files.ts';

const EXAMPLES = `
Example, in the root of the repository:

  node dist/tools/example-models/main.js --output examples

The same files are written on every machine.`;

interface Options {
  readonly output: string;
}

/** @param argv without the two leading entries of process.argv @returns the exit code */
export async function run(argv: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

function createProgram(): Command {
  return createCli(
    'example-models',
    'Makes and trains the models of the folder examples; takes seconds.',
  )
    .requiredOption('-o, --output <folder>', 'Folder for the files; existing ones are replaced')
    .addHelpText('after', EXAMPLES)
    .action(async ({ output }: Options) => {
      const made = makeExampleFiles();
      writeFiles(made, output);
      process.stdout.write(`${formatSummary(made)}\n`);
    });
}

function writeFiles({ files }: ExampleFiles, folder: string): void {
  for (const [name, bytes] of files) {
    const path = join(folder, name);
    makeFolder(dirname(path));
    replaceFile(path, bytes);
  }
}

function formatSummary({ files, accuracies }: ExampleFiles): string {
  const lines = [...files].map(([name, { length }]) => `${name}: ${length} bytes`);
  for (const [model, share] of Object.entries(accuracies)) {
    lines.push(`${model}: ${(100 * share).toFixed(1)} % of the test data correct`);
  }
  return lines.join('\n');
}
