/**
 * The command line of score: loads one version into the memory of this process, scores a file of
 * rows with every core, and writes a file of scores.
 */

import { dirname, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { mapInOrder } from '../../lib/core/map-in-order.ts';
import { type FeatureSpec, takesTensors } from '../../lib/core/slots.ts';
import { addImpliedFeatures } from '../../lib/features/implied-features.ts';
import {
  addDryRunOption,
  addJsonOption,
  type Command,
  createCli,
  optionWithEnv,
  parseByteCount,
  parseIntegerBetween,
  parseNameOption,
  UsageError,
  withDryRunNote,
} from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import {
  addDecryptOptions,
  type DecryptOptions,
  useDecryptKeys,
} from '../../lib/platform/encryption-options.ts';
import { isFolder, makeFolder } from '../../lib/platform/files.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { getProcessorCount } from '../../lib/platform/machine.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';
import { TRUSTED_KEYS_VARIABLE, TrustedKeys } from '../../lib/repository/signatures.ts';
import { LoadedBundle } from '../engine/loaded-bundle.ts';
import { readVersionSlots } from '../engine/version-files.ts';
import { readPlainModel } from '../models/plain-model.ts';
import type { EmbeddingStore } from '../stores/embedding-store.ts';
import { openStore } from '../stores/open-store.ts';
import type { MemoryChoice } from '../stores/store-choice.ts';
import { BlockScorer, checkBlock } from './block-scorer.ts';
import { RowInput } from './row-blocks.ts';
import { findKeptRows, type ScoreSource, ScoresFile } from './scores-file.ts';

const INSTANCES_MAX = 256;

interface ScoreFlags extends DecryptOptions {
  readonly repository: string;
  readonly bundle: string;
  readonly version?: string;
  readonly channel: string;
  readonly input: string;
  readonly output: string;
  readonly instances?: number;
  readonly dataDir?: string;
  readonly memoryLimit?: number;
  readonly trustedKeys?: string;
  readonly restart?: boolean;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

interface ScoreReport {
  readonly bundle: string;
  readonly version: string;
  readonly input: string;
  readonly output: string;
  /** All rows of the output; absent in a dry run, which does not read all of the input. */
  readonly rows?: number;
  /** Those that an interrupted run had scored. */
  readonly keptRows: number;
  /** Without the load of the version. */
  readonly seconds?: number;
}

const EXAMPLES = `
Rows are those that serving takes: tab-separated lines or JSON rows, one per line. The output has
the columns row, label, probability and version. Until it is complete it is called <output>.part;
the same command continues after an interruption.

Examples:
  hypercube score --repository repo --bundle ctr-dnn --input rows.tsv --output scores.tsv
  hypercube score --repository repo --bundle ctr-dnn --version 7 --input rows.jsonl \\
    --output scores.tsv --json
  zcat rows.tsv.gz | hypercube score --repository repo --bundle ctr-dnn --input - \\
    --output scores.tsv`;

export function createProgram(): Command {
  const program = createCli(
    'score',
    'Scores a file of rows with a version, without a server.',
    '-V',
  )
    .requiredOption('--repository <location>', 'Repository where versions are published')
    .requiredOption('--bundle <name>', 'Bundle of the version', parseNameOption('--bundle'))
    .option(
      '--version <name>',
      "Version to score with (default: the channel's version)",
      parseNameOption('--version'),
    )
    .option(
      '--channel <name>',
      'Channel that selects the version when --version is not given',
      parseNameOption('--channel'),
      'stable',
    )
    .requiredOption('--input <file>', 'File of rows, one per line; - is standard input')
    .requiredOption('--output <file>', 'File for the scores, as tab-separated columns')
    .option(
      '--instances <count>',
      'Copies of the model that run at the same time (default: one per core)',
      parseIntegerBetween(1, INSTANCES_MAX),
    )
    .option('--data-dir <folder>', 'Folder for tables of a repository that is not a local folder')
    .option(
      '--memory-limit <bytes>',
      'Maximum memory of the tables, such as 8GiB (default: 60 % of the memory)',
      parseByteCount,
    )
    .addOption(
      optionWithEnv(
        '--trusted-keys <path>',
        'File or folder of public keys; only use versions signed by one of them',
        TRUSTED_KEYS_VARIABLE,
      ),
    )
    .option('--restart', 'Start over instead of continuing an interrupted run')
    .addHelpText('after', EXAMPLES)
    .action(run);
  return addJsonOption(addDryRunOption(addDecryptOptions(program)));
}

async function run(flags: ScoreFlags): Promise<void> {
  checkPaths(flags);
  useDecryptKeys(flags);
  const input = new RowInput(flags.input);
  const { trustedKeys } = flags;
  const trusted = trustedKeys === undefined ? undefined : TrustedKeys.read(trustedKeys);
  const repository = openRepository(flags.repository, { keys: { trusted } });
  const manifest = await readManifest(repository, flags);
  const work: ScoreWork = { repository, manifest, input, flags, source: toSource(manifest, input) };
  const result = flags.dryRun ? await check(work) : await score(work);
  const { bundle, version } = manifest;
  const report: ScoreReport = {
    bundle,
    version,
    input: flags.input,
    output: flags.output,
    ...result,
  };
  const { dryRun = false } = flags;
  printLine(flags.json ? JSON.stringify({ ...report, dryRun }) : formatReport(report, dryRun));
}

interface ScoreWork {
  readonly repository: Repository;
  readonly manifest: Manifest;
  readonly input: RowInput;
  readonly source: ScoreSource;
  readonly flags: ScoreFlags;
}

type ScoreResult = Pick<ScoreReport, 'rows' | 'keptRows' | 'seconds'>;

function toSource({ bundle, version }: Manifest, { name, stamp }: RowInput): ScoreSource {
  return { bundle, version, input: stamp === undefined ? name : resolve(name), stamp };
}

function checkPaths({ input, output }: ScoreFlags): void {
  if (output.endsWith('.parquet')) {
    throw new UsageError(`--output ${output}: score writes only TSV`);
  }
  if (output === '-' || isFolder(output)) {
    throw new UsageError(`--output ${output}: give the name of a file`);
  }
  if (resolve(input) === resolve(output)) {
    throw new UsageError('--input and --output are the same file');
  }
}

/** Reads everything but the tables, and the first rows. */
async function check({
  repository,
  manifest,
  input,
  source,
  flags,
}: ScoreWork): Promise<ScoreResult> {
  const features = await readFeatures(repository, manifest);
  const { rows: keptRows } = findKeptRows(flags.output, source, flags.restart ?? false);
  for await (const block of input.readBlocks(0)) {
    await checkBlock(block, features, input.name);
    break;
  }
  return { keptRows };
}

async function score(work: ScoreWork): Promise<ScoreResult> {
  const { repository, manifest, source, flags } = work;
  await readFeatures(repository, manifest);
  makeFolder(dirname(resolve(flags.output)));
  const file = new ScoresFile(flags.output, source, flags.restart ?? false);
  let store: EmbeddingStore | undefined;
  let bundle: LoadedBundle | undefined;
  let isDone = false;
  try {
    const instances = flags.instances ?? Math.min(getProcessorCount(), INSTANCES_MAX);
    const logger = createLogger('score', { level: 'warn' });
    store = await openStore(toStoreChoice(flags), {
      repository,
      logger,
      workers: instances,
      memoryStores: 1,
    });
    const options = { repository, bundle: manifest.bundle, store, instances, logger };
    bundle = await LoadedBundle.load(options, manifest.version);
    const startMs = systemClock.nowMs();
    const rows = await scoreRows(bundle, file, { ...work, instances });
    file.commit();
    isDone = true;
    const seconds = Math.round(systemClock.nowMs() - startMs) / 1_000;
    return { rows, keptRows: file.keptRows, seconds };
  } finally {
    if (!isDone) file.close();
    await bundle?.close();
    await store?.close();
  }
}

/** @returns the rows of the whole output */
async function scoreRows(
  bundle: LoadedBundle,
  file: ScoresFile,
  { input, instances }: Pick<ScoreWork, 'input'> & { readonly instances: number },
): Promise<number> {
  const scorer = new BlockScorer(bundle, input.name);
  const progress = startProgress('scoring', (input.stamp?.bytes ?? 0) / 1e6, 'MB');
  let rows = file.keptRows;
  try {
    const blocks = input.readBlocks(file.keptRows);
    const scored = mapInOrder(
      blocks,
      async (block) => ({ text: await scorer.score(block), count: block.lines.length }),
      countBlocksInFlight(instances),
    );
    for await (const { text, count } of scored) {
      file.append(text);
      rows += count;
      progress.update(input.readBytes / 1e6);
    }
  } finally {
    progress.stop();
  }
  return rows;
}

/** A block is eight batches: two for each instance, and blocks that are read meanwhile. */
function countBlocksInFlight(instances: number): number {
  return 2 + Math.ceil(instances / 4);
}

function toStoreChoice({ dataDir, memoryLimit: memoryBytes }: ScoreFlags): MemoryChoice {
  return {
    kind: 'memory',
    ...(memoryBytes !== undefined && { memoryBytes }),
    ...(dataDir !== undefined && { dataDir, fallBackToDisk: true }),
  };
}

/** @throws CubeError UNSUPPORTED for a version whose requests are tensors */
async function readFeatures(repository: Repository, manifest: Manifest): Promise<FeatureSpec> {
  const name = `${manifest.bundle} ${manifest.version}`;
  const isPlain = (await readPlainModel(repository, manifest)) !== undefined;
  const spec = isPlain ? undefined : await readVersionSlots(repository, manifest);
  if (spec === undefined || takesTensors(spec)) {
    throw new CubeError(
      'UNSUPPORTED',
      `${name} takes tensors, not rows of features: send requests to serving instead`,
    );
  }
  return addImpliedFeatures(spec, name).features;
}

/** @throws CubeError NOT_FOUND when there is no such version, or the channel points nowhere */
async function readManifest(
  repository: Repository,
  { bundle, version, channel }: ScoreFlags,
): Promise<Manifest> {
  if (version !== undefined) return repository.readManifest(bundle, version);
  const { pointer } = await repository.readChannel(bundle, channel);
  if (pointer !== undefined) return repository.readManifest(bundle, pointer.version);
  const bundles = repository.canList ? await repository.listBundles() : [bundle];
  throw new CubeError(
    'NOT_FOUND',
    bundles.includes(bundle)
      ? `${repository.location} has no channel ${channel} for bundle ${bundle}: give --version`
      : `${repository.location} has no bundle ${bundle} (it has: ${bundles.join(', ') || 'none'})`,
  );
}

function formatReport(report: ScoreReport, dryRun: boolean): string {
  const { bundle, version, input, output, rows, keptRows, seconds = 0 } = report;
  const kept = keptRows === 0 ? '' : `, ${keptRows} of them by an earlier run`;
  if (dryRun) {
    const from = keptRows === 0 ? '' : `, from row ${keptRows + 1} on`;
    const text = `${bundle} ${version} would score ${input}${from}, to ${output}`;
    return withDryRunNote(text, { dryRun });
  }
  return `${bundle} ${version}: ${rows} rows scored${kept}, in ${seconds} s, to ${output}`;
}
