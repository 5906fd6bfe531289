/** `cube-agent policy show` and `policy set`: the gate's limits for all versions of a bundle. */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { type Command, UsageError } from '../../lib/platform/cli.ts';
import { readText } from '../../lib/platform/files.ts';
import { formatTable, printLine } from '../../lib/platform/terminal-output.ts';
import type { PolicyEntry } from '../../lib/repository/policy-log.ts';
import {
  applyLimitFlags,
  LIMIT_HELP,
  LIMIT_NAMES,
  LIMIT_RULES,
  type LimitOverrides,
  parseLimits,
} from '../gate/gate-limits.ts';
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

type SetOptions = BundleOptions &
  AuditOptions & { readonly file?: string; readonly limit: readonly string[] };

export function addPolicyCommand(program: Command): void {
  const policy = program
    .command('policy')
    .description("Print or change the gate's limits for all versions of a bundle")
    .addHelpText('after', EXAMPLES);
  addJsonOption(addBundleOptions(policy.command('show')))
    .description('Print the limits, and who changed them when and why')
    .addHelpText('after', EXAMPLES)
    .action(show);
  addAuditOptions(addWritableBundleOptions(policy.command('set')))
    .description('Change limits; they apply from the next run of the gate')
    .option(
      '--limit <name=value>',
      'Limit to change: aucMin=0.75, or aucMin=none to switch it off; repeatable',
      collectValues,
      [],
    )
    .option('--file <file>', 'policy.json that replaces all limits set before (default: none)')
    .addHelpText('after', EXAMPLES)
    .action(set);
}

const EXAMPLES = `
If a version has a policy.json, the limits of the bundle are not used for it; limits that the file
does not name have their defaults. cube-agent gate --policy replaces both, and --limit overrides
single limits.

Examples:
  cube-agent policy show --repository /srv/models --bundle ctr-dnn
  cube-agent policy set --repository /srv/models --bundle ctr-dnn --limit aucMin=0.75 \\
    --limit latencyP99RatioMax=none --reason "the gate runs on shared machines"
  cube-agent policy set --repository /srv/models --bundle ctr-dnn --file policy.json \\
    --reason "reviewed"

Limits with their defaults:
${LIMIT_HELP}`;

async function show(options: BundleOptions & { json?: boolean }): Promise<void> {
  const { bundle } = options;
  const history = await openRepositoryWithKeys(options).policyLog(bundle).readHistory();
  const limits = readLimitChanges(history.at(-1), bundle);
  if (options.json) {
    printLine(JSON.stringify({ bundle, limits, history }));
    return;
  }
  const rows = LIMIT_NAMES.map((name) => {
    const { defaultValue, meaning } = LIMIT_RULES[name];
    const isSet = limits[name] !== undefined;
    const value = isSet ? limits[name] : defaultValue;
    return [name, String(value ?? 'none'), isSet ? 'set' : 'default', meaning];
  });
  printLine(formatTable(['LIMIT', 'VALUE', 'SOURCE', 'MEANING'], rows));
  if (history.length === 0) return;
  const entries = history.map(({ seq, at, by, reason, limits: set }) => [
    String(seq),
    at,
    by,
    reason,
    Object.entries(set)
      .map(([name, value]) => `${name}=${value ?? 'none'}`)
      .join(' '),
  ]);
  printLine(`\n${formatTable(['SEQ', 'AT', 'BY', 'REASON', 'LIMITS'], entries)}`);
}

async function set(options: SetOptions): Promise<void> {
  const { bundle, by, file, limit, dryRun = false, json } = options;
  if (file === undefined && limit.length === 0) {
    throw new UsageError('nothing to set; pass --limit or --file');
  }
  const reason = requireReason(options.reason);
  const repository = openRepositoryWithKeys(options);
  if (repository.canList && !(await repository.listBundles()).includes(bundle)) {
    throw new CubeError('NOT_FOUND', `${repository.location} has no bundle ${bundle}`);
  }
  const log = repository.policyLog(bundle);
  const before = (await log.readHistory()).at(-1);
  const from = file === undefined ? readLimitChanges(before, bundle) : readFile(file);
  const limits = applyLimitFlags(from, limit);
  const entry = await log.append(before, { limits, by, reason });
  const text =
    `${bundle}: entry ${entry.seq} of the policy ` +
    (entry === before ? 'has these limits already' : 'applies from the next run of the gate');
  printLine(json ? JSON.stringify({ bundle, entry, dryRun }) : withDryRunNote(text, options));
}

function readFile(file: string): LimitOverrides {
  return parseLimits(JsonReader.parseFile(readText(file, FILE_BYTES_MAX), file));
}

function readLimitChanges(entry: PolicyEntry | undefined, bundle: string): LimitOverrides {
  if (entry === undefined) return {};
  return parseLimits(JsonReader.of(entry.limits, `entry ${entry.seq} of the policy of ${bundle}`));
}
