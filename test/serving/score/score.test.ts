/** `hypercube score` scores a file as the model does, and continues after a kill. */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { runCommandWithFault, runProcess } from '../../support/processes.ts';
import { BUNDLE, ToyBundle, type ToyRow, toTsv, toyRows } from '../support/toy-bundle.ts';
import { ToyRepository } from '../support/toy-service.ts';

const SCRIPT = 'serving/score/main.js';
const toy = new ToyBundle({ version: '1', seed: 11 });

async function prepare(t: TestContext): Promise<{
  readonly toys: ToyRepository;
  readonly input: string;
  readonly output: string;
  readonly flags: readonly string[];
  writeInput(text: string): void;
}> {
  const toys = new ToyRepository(t);
  await toys.publish(toy);
  await toys.activate('1');
  const [input, output] = [join(toys.folder, 'rows.txt'), join(toys.folder, 'scores.tsv')];
  const flags = ['--repository', toys.location, '--bundle', BUNDLE, '--input', input];
  return {
    toys,
    input,
    output,
    flags: [...flags, '--output', output, '--instances', '2'],
    writeInput: (text) => writeFileSync(input, text),
  };
}

function requireScores(path: string, rows: readonly ToyRow[], labels?: readonly number[]): void {
  const [header, ...lines] = readFileSync(path, 'utf8').trimEnd().split('\n');
  assert.equal(header, 'row\tlabel\tprobability\tversion');
  assert.equal(lines.length, rows.length);
  lines.forEach((line, i) => {
    const [row, label, probability, version] = line.split('\t');
    assert.deepEqual([row, label, version], [`${i + 1}`, `${labels?.[i] ?? ''}`, '1']);
    const difference = Math.abs(Number(probability) - toy.score(rows[i]!)[1]);
    assert.ok(difference < 1e-6, `row ${row}: ${line}`);
  });
}

test('a killed run continues, and its file equals that of a run without a kill', async (t) => {
  const { toys, flags, input, output, writeInput } = await prepare(t);
  const rows = toyRows(1_700);
  const labels = rows.map((_, i) => i % 2);
  writeInput(toTsv(rows, labels));
  utimesSync(input, 1_000, 1_000);
  const killed = await runCommandWithFault('score.block:kill:2', SCRIPT, ...flags);
  assert.equal(killed.code, null);
  assert.equal(existsSync(output), false);
  writeFileSync(`${output}.part`, '1025\t0\t0.', { flag: 'a' });

  await toys.publish(new ToyBundle({ version: '2', seed: 12 }));
  const other = await runProcess(SCRIPT, ...flags, '--version', '2');
  assert.equal(other.code, 1);
  assert.match(
    other.stderr,
    /scores\.tsv\.part holds 1024 rows of an interrupted run that scores .*rows\.txt with toy 1:/,
  );
  writeInput(toTsv([...rows, ...toyRows(1)], [...labels, 1]));
  const changed = await runProcess(SCRIPT, ...flags);
  assert.equal(changed.code, 1);
  assert.match(
    changed.stderr,
    /run that read .*rows\.txt before it was changed: start over with --restart/,
  );
  writeInput(toTsv(rows, labels));
  utimesSync(input, 1_000, 1_000);

  const continued = await runProcess(SCRIPT, ...flags, '--json');
  assert.equal(continued.code, 0, continued.stderr);
  const report = JSON.parse(continued.stdout);
  assert.deepEqual([report.version, report.rows, report.keptRows], ['1', 1_700, 1_024]);
  requireScores(output, rows, labels);
  for (const rest of ['.part', '.part.json', '.part.lock']) {
    assert.equal(existsSync(output + rest), false, rest);
  }

  const first = readFileSync(output);
  const whole = await runProcess(SCRIPT, ...flags);
  assert.equal(whole.code, 0, whole.stderr);
  assert.deepEqual(readFileSync(output), first);
});

test('JSON rows are scored; the line of a wrong row is named, and no file appears', async (t) => {
  const { flags, output, writeInput } = await prepare(t);
  const rows = toyRows(3);
  const lines = rows.map(({ dense, categorical }) =>
    JSON.stringify({ dense: dense.map((v) => (Number.isNaN(v) ? null : v)), categorical }),
  );
  writeInput(`${lines.join('\n')}\n{"dense":[1,2],"categorical":["a"]}\n`);
  const failed = await runProcess(SCRIPT, ...flags);
  assert.equal(failed.code, 1);
  assert.match(failed.stderr, /rows\.txt, line 4: .*categorical/);
  assert.equal(existsSync(output), false);
  // No whole block was scored, so that the run after a correction simply starts over.
  writeInput(lines.join('\n'));
  const scored = await runProcess(SCRIPT, ...flags);
  assert.equal(scored.code, 0, scored.stderr);
  requireScores(output, rows);
});

test('a missing bundle or channel is named', async (t) => {
  const { toys, flags, writeInput } = await prepare(t);
  writeInput(toTsv(toyRows(1)));
  const wrong = await runProcess(SCRIPT, ...flags, '--bundle', 'ctr');
  assert.match(
    wrong.stderr,
    new RegExp(`${toys.location} has no bundle ctr \\(it has: ${BUNDLE}\\)`),
  );
  const channel = await runProcess(SCRIPT, ...flags, '--channel', 'canary');
  assert.match(channel.stderr, /has no channel canary for bundle .*: give --version/);
});

test('a dry run checks the first rows and writes nothing', async (t) => {
  const { flags, output, writeInput } = await prepare(t);
  writeInput(toTsv(toyRows(2)));
  const planned = await runProcess(SCRIPT, ...flags, '--dry-run', '--json');
  assert.equal(planned.code, 0, planned.stderr);
  const { version, dryRun } = JSON.parse(planned.stdout);
  assert.deepEqual([version, dryRun], ['1', true]);
  writeInput(`${toTsv(toyRows(1))}1\tx\ta\tb\tc\n`);
  const wrong = await runProcess(SCRIPT, ...flags, '--dry-run');
  assert.match(wrong.stderr, /rows\.txt, line 2: column 2 \(I2\): expected a number/);
  writeInput('PAR1\0\0');
  const parquet = await runProcess(SCRIPT, ...flags, '--dry-run');
  assert.match(parquet.stderr, /Parquet file, which score does not read/);
  for (const suffix of ['', '.part', '.part.json', '.part.lock']) {
    assert.equal(existsSync(output + suffix), false);
  }
});
