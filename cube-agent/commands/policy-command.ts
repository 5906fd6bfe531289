/** `cube-agent policy show` and `policy set`: the gate's limits for all versions of a bundle, and who changed them when and why. */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { Command } from '../../lib/platform/cli.ts';
import { readText } from '../../lib/platform/files.ts';
import { print, table } from '../../lib/platform/text-table.ts';
import type { PolicyEntry } from '../../lib/repository/policy-log.ts';
import {
  LIMIT_HELP,
  LIMIT_NAMES,
  LIMIT_RULES,
  type LimitChanges,
  layLimitsOver,
  readChanges,
} from '../gate/gate-limits.ts';
import { openWithKeys } from './keys.ts';
import {
  addBundleOptions,
  addDeedOptions,
  type BundleOptions,
  type DeedOptions,
  requireReason,
  said,
} from './options.ts';

const FILE_BYTES_MAX = 1 << 20;

type SetOptions = BundleOptions &
  DeedOptions & { readonly file?: string; readonly limit: readonly string[] };

export function addPolicyCommand(program: Command): void {
  const policy = program
    .command('policy')
    .description("the gate's limits for all versions of a bundle")
    .addHelpText('after', EXAMPLES);
  addBundleOptions(policy.command('show'))
    .description('which limits hold, and who changed them when and why')
    .option('--json', 'for programs')
    .addHelpText('after', EXAMPLES)
    .action(show);
  addDeedOptions(addBundleOptions(policy.command('set')))
    .description('change limits, from the next run of the gate on')
    .option('--limit <name=value>', 'one that changes, or =none; once for each', collect, [])
    .option('--file <file>', 'a policy.json that takes the place of all limits set before')
    .addHelpText('after', EXAMPLES)
    .action(set);
}

const EXAMPLES = `
A version that has a policy.json of its own is held to that one; cube-agent gate --policy and --limit go before both.

Examples:
  cube-agent policy show --repository /srv/models --bundle ctr-dnn
  cube-agent policy set --repository /srv/models --bundle ctr-dnn --limit aucMin=0.75 --limit latencyP99RatioMax=none \\
    --reason "the machines of the gate are shared"
  cube-agent policy set --repository /srv/models --bundle ctr-dnn --file policy.json --reason "reviewed"

Limits (default):
${LIMIT_HELP}`;

function collect(text: string, before: readonly string[]): string[] {
  return [...before, text];
}

async function show(options: BundleOptions & { json?: boolean }): Promise<void> {
  const { bundle } = options;
  const history = await openWithKeys(options).policy(bundle).history();
  const limits = changesOf(history.at(-1), bundle);
  if (options.json) {
    print(JSON.stringify({ bundle, limits, history }));
    return;
  }
  const rows = LIMIT_NAMES.map((name) => {
    const { byDefault, meaning } = LIMIT_RULES[name];
    const isSet = limits[name] !== undefined;
    const value = isSet ? limits[name] : byDefault;
    return [name, String(value ?? 'none'), isSet ? 'set' : 'default', meaning];
  });
  print(table(['LIMIT', 'VALUE', '', 'BOUNDS'], rows));
  if (history.length === 0) return;
  const entries = history.map(({ seq, at, by, reason, limits: set }) => [
    ...[String(seq), at, by, reason],
    Object.entries(set)
      .map(([name, value]) => `${name}=${value ?? 'none'}`)
      .join(' '),
  ]);
  print(`\n${table(['SEQ', 'AT', 'BY', 'REASON', 'LIMITS'], entries)}`);
}

async function set(options: SetOptions): Promise<void> {
  const { bundle, by, file, limit, dryRun = false, json } = options;
  if (file === undefined && limit.length === 0) {
    throw new CubeError('INVALID_ARGUMENT', 'nothing to set: give --limit or --file');
  }
  const reason = requireReason(options.reason);
  const repository = openWithKeys(options);
  if (repository.canList && !(await repository.bundles()).includes(bundle)) {
    throw new CubeError('NOT_FOUND', `${repository.location} has no bundle ${bundle}`);
  }
  const log = repository.policy(bundle);
  const before = (await log.history()).at(-1);
  const from = file === undefined ? changesOf(before, bundle) : readFile(file);
  const limits = layLimitsOver(from, limit);
  const entry = await log.append(before, { limits, by, reason });
  const text = `${bundle}: entry ${entry.seq} of the policy ${entry === before ? 'says so already' : 'holds from the next gate on'}`;
  print(json ? JSON.stringify({ bundle, entry, dryRun }) : said(text, options));
}

function readFile(file: string): LimitChanges {
  return readChanges(JsonReader.parse(readText(file, FILE_BYTES_MAX), file));
}

function changesOf(entry: PolicyEntry | undefined, bundle: string): LimitChanges {
  if (entry === undefined) return {};
  return readChanges(JsonReader.of(entry.limits, `entry ${entry.seq} of the policy of ${bundle}`));
}
