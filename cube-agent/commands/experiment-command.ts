/** `cube-agent experiment`: the experiments on a bundle, which its serving processes follow. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Experiment, Variant } from '../../lib/core/experiment.ts';
import { type Command, parseNameOption, UsageError } from '../../lib/platform/cli.ts';
import { readExperiments } from '../../lib/platform/experiment-fields.ts';
import { readText } from '../../lib/platform/files.ts';
import { formatTable, printLine } from '../../lib/platform/terminal-output.ts';
import { parseYaml } from '../../lib/platform/yaml.ts';
import { type ExperimentEntry, toExperimentFields } from '../../lib/repository/experiment-log.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import {
  type AuditOptions,
  addAuditOptions,
  addBundleOptions,
  addJsonOption,
  addWritableBundleOptions,
  type BundleOptions,
  collectValues,
  openRepositoryWithKeys,
  requireReason,
  withDryRunNote,
} from './options.ts';

const FILE_BYTES_MAX = 1 << 20;
const WEIGHT_FLAG = /^([^=]+)=(\d+(?:\.\d+)?)$/;
const WEIGHT_MAX = 1e6;

type ChangeOptions = BundleOptions & AuditOptions & { readonly name?: string };
type SetOptions = ChangeOptions & { readonly file?: string; readonly weight: readonly string[] };
type StopOptions = ChangeOptions & { readonly all?: boolean };

export function addExperimentCommand(program: Command): void {
  const experiment = program
    .command('experiment')
    .description('Print or change the experiments on a bundle')
    .addHelpText('after', EXAMPLES);
  addJsonOption(addBundleOptions(experiment.command('show')))
    .description('Print the running experiments, and who started them when and why')
    .addHelpText('after', EXAMPLES)
    .action(show);
  addJsonOption(addBundleOptions(experiment.command('history')))
    .description('Print every change of the experiments')
    .addHelpText('after', EXAMPLES)
    .action(history);
  addAuditOptions(addWritableBundleOptions(experiment.command('set')))
    .description('Start or change experiments; serving follows within its poll interval')
    .option('--file <file>', 'YAML file whose experiments replace all running ones (default: none)')
    .option('--name <name>', 'Experiment that --weight changes', parseNameOption('experiment'))
    .option(
      '--weight <variant=weight>',
      'New weight of a variant, such as new=20; repeatable (default: unchanged)',
      collectValues,
      [],
    )
    .addHelpText('after', EXAMPLES)
    .action(set);
  addAuditOptions(addWritableBundleOptions(experiment.command('stop')))
    .description('Stop one experiment or all')
    .option('--name <name>', 'Experiment to stop', parseNameOption('experiment'))
    .option('--all', 'Stop all experiments')
    .addHelpText('after', EXAMPLES)
    .action(stop);
}

const EXAMPLES = `
The file has the experiments of docs/traffic.md without the field model:

  experiments:
    - name: ranking
      variants:
        - { name: control, weight: 90 }
        - { name: new, weight: 10, channel: canary }

Examples:
  cube-agent experiment set --repository /srv/models --bundle ctr-dnn --file ranking.yaml \\
    --reason "test version 8 on a tenth of the users"
  cube-agent experiment set --repository /srv/models --bundle ctr-dnn --name ranking \\
    --weight new=20 --reason "no complaints"
  cube-agent experiment stop --repository /srv/models --bundle ctr-dnn --name ranking \\
    --reason "version 8 won"
  cube-agent experiment history --repository /srv/models --bundle ctr-dnn`;

async function show(options: BundleOptions & { json?: boolean }): Promise<void> {
  const { bundle } = options;
  const entry = (await readHistory(openRepositoryWithKeys(options), bundle)).at(-1);
  if (options.json) {
    printLine(JSON.stringify({ bundle, entry: entry && toPlainEntry(entry) }));
    return;
  }
  const experiments = entry?.experiments ?? [];
  if (entry === undefined || experiments.length === 0) {
    printLine(`${bundle} has no experiments`);
    return;
  }
  const rows = experiments.flatMap(({ name, slot, variants, overrides }) =>
    variants.map((variant, i) => [
      i === 0 ? name : '',
      variant.name,
      String(variant.weight),
      formatShare(variant, variants),
      formatTarget(variant),
      i === 0 ? `${slot === undefined ? '' : `slot ${slot}, `}${overrides.size} overrides` : '',
    ]),
  );
  printLine(formatTable(['EXPERIMENT', 'VARIANT', 'WEIGHT', 'SHARE', 'ANSWERS', 'KEYS'], rows));
  printLine(`\nentry ${entry.seq}, ${entry.at}, by ${entry.by}: ${entry.reason}`);
}

async function history(options: BundleOptions & { json?: boolean }): Promise<void> {
  const { bundle } = options;
  const entries = await readHistory(openRepositoryWithKeys(options), bundle);
  if (options.json) {
    printLine(JSON.stringify({ bundle, history: entries.map(toPlainEntry) }));
    return;
  }
  if (entries.length === 0) {
    printLine(`${bundle} never had experiments`);
    return;
  }
  const rows = entries.map(({ seq, at, by, reason, experiments }) => [
    String(seq),
    at,
    by,
    reason,
    formatExperiments(experiments),
  ]);
  printLine(formatTable(['SEQ', 'AT', 'BY', 'REASON', 'EXPERIMENTS'], rows));
}

async function set(options: SetOptions): Promise<void> {
  const { bundle, file, name, weight } = options;
  if (name !== undefined && weight.length === 0) throw new UsageError('--name needs --weight');
  if (file === undefined && weight.length === 0) {
    throw new UsageError('nothing to set; pass --file, or --name with --weight');
  }
  if (weight.length > 0 && name === undefined) {
    throw new UsageError('--weight needs --name, the experiment to change');
  }
  await change(options, (running) => {
    const experiments = file === undefined ? running : readFile(file, bundle);
    return name === undefined ? experiments : changeWeights(experiments, name, weight);
  });
}

async function stop(options: StopOptions): Promise<void> {
  const { name, all = false } = options;
  if ((name === undefined) !== all) throw new UsageError('pass either --name or --all');
  await change(options, (running) => {
    if (name === undefined) return [];
    requireExperiment(running, name);
    return running.filter((experiment) => experiment.name !== name);
  });
}

/** Appends an entry with the changed experiments. */
async function change(
  options: ChangeOptions,
  compute: (running: readonly Experiment[]) => readonly Experiment[],
): Promise<void> {
  const { bundle, by, dryRun = false, json } = options;
  const reason = requireReason(options.reason);
  const repository = openRepositoryWithKeys(options);
  const before = (await readHistory(repository, bundle)).at(-1);
  const experiments = compute(before?.experiments ?? []);
  await requireTargets(repository, bundle, experiments);
  const log = repository.experimentLog(bundle);
  const entry = await log.append(before, { experiments, by, reason });
  if (json) {
    printLine(JSON.stringify({ bundle, entry: toPlainEntry(entry), dryRun }));
    return;
  }
  const running = formatExperiments(experiments) || 'no experiments';
  const text =
    entry === before
      ? `${bundle}: entry ${entry.seq} has these experiments already: ${running}`
      : `${bundle}: entry ${entry.seq}: ${running}`;
  printLine(withDryRunNote(text, options));
}

async function readHistory(repository: Repository, bundle: string): Promise<ExperimentEntry[]> {
  if (repository.canList && !(await repository.listBundles()).includes(bundle)) {
    throw new CubeError('NOT_FOUND', `${repository.location} has no bundle ${bundle}`);
  }
  return repository.experimentLog(bundle).readHistory();
}

/** @throws CubeError NOT_FOUND for a version or a channel of the bundle that does not exist */
async function requireTargets(
  repository: Repository,
  bundle: string,
  experiments: readonly Experiment[],
): Promise<void> {
  for (const { variants } of experiments) {
    for (const { target } of variants) {
      // Names of other models are known to the serving processes only.
      if (target.model !== undefined) continue;
      if (target.version !== undefined) await repository.readManifest(bundle, target.version);
      if (target.channel === undefined) continue;
      const { pointer } = await repository.readChannel(bundle, target.channel);
      if (pointer !== undefined) continue;
      throw new CubeError(
        'NOT_FOUND',
        `${bundle} has no channel ${target.channel}: activate a version there first`,
      );
    }
  }
}

function readFile(file: string, bundle: string): Experiment[] {
  const fields = parseYaml(readText(file, FILE_BYTES_MAX), file).fields(['experiments']);
  return readExperiments(fields.get('experiments'), bundle);
}

function changeWeights(
  experiments: readonly Experiment[],
  name: string,
  flags: readonly string[],
): Experiment[] {
  const { variants } = requireExperiment(experiments, name);
  const weights = new Map(flags.map(parseWeight));
  for (const variant of weights.keys()) {
    if (variants.some((known) => known.name === variant)) continue;
    const known = variants.map((each) => each.name).join(', ');
    throw new UsageError(
      `--weight: experiment ${name} has no variant ${variant} (it has: ${known})`,
    );
  }
  const changed = variants.map((variant) => {
    return { ...variant, weight: weights.get(variant.name) ?? variant.weight };
  });
  if (changed.every(({ weight }) => weight === 0)) {
    throw new UsageError('--weight: no variant has a weight above 0; stop the experiment instead');
  }
  return experiments.map((each) => (each.name === name ? { ...each, variants: changed } : each));
}

function parseWeight(text: string): readonly [string, number] {
  const [, variant, weight] = WEIGHT_FLAG.exec(text) ?? [];
  if (variant === undefined || Number(weight) > WEIGHT_MAX) {
    throw new UsageError(`--weight ${text}: expected variant=weight, such as new=20`);
  }
  return [variant, Number(weight)];
}

function requireExperiment(experiments: readonly Experiment[], name: string): Experiment {
  const found = experiments.find((experiment) => experiment.name === name);
  if (found !== undefined) return found;
  const known = experiments.map((experiment) => experiment.name).join(', ') || 'none';
  throw new CubeError('NOT_FOUND', `there is no experiment ${name} (running: ${known})`);
}

function toPlainEntry({ experiments, ...entry }: ExperimentEntry): object {
  return { ...entry, experiments: experiments.map(toExperimentFields) };
}

/** "ranking (control 90, new 10 channel canary)" */
export function formatExperiments(experiments: readonly Experiment[]): string {
  return experiments
    .map(({ name, variants }) => {
      const list = variants.map((variant) => `${variant.name} ${variant.weight}`);
      return `${name} (${list.join(', ')})`;
    })
    .join(', ');
}

function formatShare({ weight }: Variant, variants: readonly Variant[]): string {
  const sum = variants.reduce((total, variant) => total + variant.weight, 0);
  return `${Number(((100 * weight) / sum).toPrecision(4))} %`;
}

function formatTarget({ target: { model, channel, version } }: Variant): string {
  const parts = [
    ...(model === undefined ? [] : [`model ${model}`]),
    ...(channel === undefined ? [] : [`channel ${channel}`]),
    ...(version === undefined ? [] : [`version ${version}`]),
  ];
  return parts.join(', ') || 'as without the experiment';
}
