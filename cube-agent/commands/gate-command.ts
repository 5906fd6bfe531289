/** `cube-agent gate`: replays golden rows on two versions, compares, judges and reports. */

import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import {
  type Command,
  EXIT_FAILED,
  EXIT_OK,
  EXIT_USAGE,
  parseIntegerBetween,
  parseNameOption,
} from '../../lib/platform/cli.ts';
import {
  addDecryptOptions,
  type DecryptOptions,
  shareDecryptKeys,
} from '../../lib/platform/encryption-options.ts';
import { replaceFile } from '../../lib/platform/files.ts';
import { waitForParentStop } from '../../lib/platform/supervised-process.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { GateReportFiles as StoredReport } from '../../lib/repository/rollout-log.ts';
import type { GateOptions } from '../gate/gate.ts';
import { LIMIT_HELP } from '../gate/gate-limits.ts';
import type { GateReport } from '../gate/gate-report.ts';
import { renderHtmlReport } from '../gate/report-page.ts';
import { renderTextReport } from '../gate/report-text.ts';
import {
  addAuthorOption,
  addChannelOptions,
  addDryRunOption,
  addJsonOption,
  type ChannelOptions,
  collectEndpoints,
  collectValues,
  getDefaultAuthor,
  openRepositoryWithKeys,
  withDryRunNote,
} from './options.ts';

/** The gate could not run; this says nothing about the version, and a retry may succeed. */
const EXIT_COULD_NOT_RUN = 3;
/** Errors of the command line or its inputs, for which a retry does not help. */
const USAGE_ERROR_CODES: ReadonlySet<ErrorCode> = new Set([
  ...(['INVALID_ARGUMENT', 'NOT_FOUND', 'TOO_LARGE', 'UNSUPPORTED', 'CORRUPT', 'DENIED'] as const),
]);

interface GateFlags extends ChannelOptions, DecryptOptions {
  readonly version?: string;
  /** False for --no-against. */
  readonly against?: string | false;
  readonly golden?: string;
  readonly policy?: string;
  readonly limit: readonly string[];
  readonly fleet?: string;
  readonly candidate?: readonly string[];
  readonly baseline?: readonly string[];
  readonly shadow?: readonly string[];
  readonly rows: number;
  readonly rowsPerRequest: number;
  readonly rate: number;
  readonly requests: number;
  readonly timeoutMs: number;
  readonly readyTimeoutMs: number;
  readonly by: string;
  readonly show?: string;
  readonly run?: number;
  readonly html?: string;
  readonly json?: boolean;
  readonly store: boolean;
}

const EXAMPLES = `
Golden rows are input rows published with a version (golden.jsonl). A limit that is exceeded fails
the gate.

Exit code: 0 passed; 1 failed; 2 wrong usage or input; 3 could not run this time, retry.
Flags after -- are passed to the serving processes.

Examples:
  cube-agent gate --repository /srv/models --bundle ctr-dnn --version 2 --fleet fleet.json
  cube-agent gate --repository /srv/models --bundle ctr-dnn --version 2 --against 1 \\
    --golden recorded/ctr.jsonl --limit aucDropMax=0.002 --limit latencyP99RatioMax=none
  cube-agent gate --repository /srv/models --bundle ctr-dnn --version 2 \\
    -- --store redis --redis-url redis://cache:6379
  cube-agent gate --repository /srv/models --bundle ctr-dnn --show 2 --html report.html

Limits of policy.json, cube-agent policy and --limit, with their defaults:
${LIMIT_HELP}`;

export function addGateCommand(program: Command): void {
  const command = addDecryptOptions(addChannelOptions(program.command('gate')))
    .description('Compare scores and latency of a version with the active one, on recorded rows')
    .argument('[flags...]', 'Further flags of the serving processes, after --')
    .option(
      '--version <name>',
      'Version to check (required unless --show is given)',
      parseNameOption('version'),
    )
    .option(
      '--against <name>',
      "Version to compare with (default: the channel's version, or its previous one if --version " +
        'is already active)',
      parseNameOption('version'),
    )
    .option('--no-against', 'Compare with no version; only absolute limits apply')
    .option(
      '--golden <file>',
      "File with golden rows, - for standard input (default: the version's golden.jsonl)",
    )
    .option(
      '--policy <file>',
      "File with limits (default: policy.json of the version, else the bundle's policy)",
    )
    .option(
      '--limit <name=value>',
      'Limit that overrides the policy: aucMin=0.75, or aucMin=none to switch it off; repeatable',
      collectValues,
      [],
    )
    .option(
      '--fleet <file>',
      'fleet.json; look up rows on its servers (default: load the tables locally)',
    );
  addRunningServings(command);
  const authored = addAuthorOption(
    addReplayOptions(command),
    getDefaultAuthor(),
    'Author to record in the report',
  );
  addJsonOption(addDryRunOption(authored))
    .option('--no-store', 'Do not store the report in the repository')
    .option('--html <file>', 'Also write the report as an HTML page (default: none)')
    .option(
      '--show <version>',
      'Print the stored report of a version and run nothing',
      parseNameOption('version'),
    )
    .option(
      '--run <n>',
      'Number of the report that --show prints (default: the newest)',
      parseIntegerBetween(1, 10_000),
    )
    .addHelpText('after', EXAMPLES)
    .action(async (servingFlags: string[], flags: GateFlags) => {
      process.exitCode = await reportGateErrors(flags, () =>
        flags.show === undefined ? gate(flags, servingFlags) : show(flags, flags.show),
      );
    });
}

function addRunningServings(command: Command): void {
  command
    .option(
      '--candidate <host:port>',
      'Running serving process with the version (default: start one)',
      collectEndpoints,
    )
    .option(
      '--baseline <host:port>',
      'Running serving process with the version to compare with (default: start one)',
      collectEndpoints,
    )
    .option(
      '--shadow <host:port>',
      'Serving process that shadows requests to the version, for shadowRequestsMin; repeatable ' +
        '(default: none)',
      collectEndpoints,
    );
}

function addReplayOptions(command: Command): Command {
  const replaying = command
    .option(
      '--rows <n>',
      'Maximum golden rows; more are sampled',
      parseIntegerBetween(1, 200_000),
      10_000,
    )
    .option('--rows-per-request <n>', 'Rows of a request', parseIntegerBetween(1, 1_000), 16)
    .option('--rate <n>', 'Requests per second to each version', parseIntegerBetween(1, 10_000), 50)
    .option(
      '--requests <n>',
      'Minimum number of requests to each version',
      parseIntegerBetween(1, 1_000_000),
      400,
    )
    .option(
      '--timeout-ms <n>',
      'Timeout of a request in milliseconds',
      parseIntegerBetween(1, 600_000),
      2_000,
    );
  return replaying.option(
    '--ready-timeout-ms <n>',
    'Timeout of loading the version in a serving process, in milliseconds',
    parseIntegerBetween(1, 86_400_000),
    300_000,
  );
}

/** Uses other exit codes than 1, which always means that the version failed. */
async function reportGateErrors(flags: GateFlags, work: () => Promise<number>): Promise<number> {
  try {
    return await work();
  } catch (error) {
    const { code, message } = CubeError.from(error);
    process.stderr.write(
      `cube-agent: ${flags.show === undefined ? 'the gate could not run: ' : ''}${message}\n`,
    );
    return USAGE_ERROR_CODES.has(code) ? EXIT_USAGE : EXIT_COULD_NOT_RUN;
  }
}

async function gate(flags: GateFlags, servingFlags: readonly string[]): Promise<number> {
  const { version, bundle } = flags;
  if (version === undefined)
    throw new CubeError('INVALID_ARGUMENT', '--version is missing; pass it, or --show');
  shareDecryptKeys(flags);
  const repository = openRepositoryWithKeys(flags);
  const against = await findBaselineVersion(repository, flags, version);
  const told = new AbortController();
  const stop = (): void => told.abort();
  // Stop when the rollout that started this gate is killed.
  void waitForParentStop()?.then(stop);
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, stop);
  const { runGate } = await import('../gate/gate.ts');
  const { signal } = told;
  const options = { ...toGateOptions(flags, servingFlags), repository, version, against, signal };
  if (flags.dryRun) return printPlan(options, flags);
  const report = await runGate(options);
  const texts = {
    json: `${JSON.stringify(report)}\n`,
    txt: renderTextReport(report),
    html: renderHtmlReport(report),
  };
  await outputReport(texts, flags);
  if (flags.store) {
    const run = await repository.rolloutLog(bundle, version).putGateReport(texts);
    if (!flags.json) printLine(`stored as report ${run} of version ${version}`);
  }
  return report.verdict === 'pass' ? EXIT_OK : EXIT_FAILED;
}

/** Reads all inputs and starts no process. */
async function printPlan(options: GateOptions, flags: GateFlags): Promise<number> {
  const { readGateInputs } = await import('../gate/gate.ts');
  const { bundle, version, against = null } = options;
  const { limits, policy, golden } = await readGateInputs(options);
  const { source, total } = golden;
  const rows = golden.rows.length;
  const text =
    `would compare ${bundle} ${version} with ${against ?? 'no version'} on ${rows} of ${total} ` +
    `rows of ${source}, by limits of ${policy}`;
  const plan = { bundle, version, against, golden: { source, rows, total }, policy, limits };
  printLine(flags.json ? JSON.stringify({ ...plan, dryRun: true }) : withDryRunNote(text, flags));
  return EXIT_OK;
}

function toGateOptions(
  flags: GateFlags,
  servingFlags: readonly string[],
): Omit<GateOptions, 'repository' | 'version' | 'against' | 'signal'> {
  const { bundle, golden, policy, fleet, candidate, baseline, by } = flags;
  return {
    location: flags.repository,
    bundle,
    golden,
    policy,
    limits: flags.limit,
    by,
    rowsMax: flags.rows,
    rowsPerRequest: flags.rowsPerRequest,
    requestsPerSecond: flags.rate,
    requestsMin: flags.requests,
    timeoutMs: flags.timeoutMs,
    readyTimeoutMs: flags.readyTimeoutMs,
    store: { fleet, flags: servingFlags, trustedKeys: flags.trustedKeys },
    shadows: flags.shadow ?? [],
    endpoints: { candidate: candidate?.at(-1), baseline: baseline?.at(-1) },
  };
}

/** The channel's version; if that is the version itself, the one it would roll back to. */
async function findBaselineVersion(
  repository: Repository,
  { bundle, channel, against }: GateFlags,
  version: string,
): Promise<string | undefined> {
  if (against === false) return undefined;
  if (against !== undefined) return against;
  const { pointer, previous } = await repository.readChannel(bundle, channel);
  return pointer?.version === version ? previous?.version : pointer?.version;
}

async function show(flags: GateFlags, version: string): Promise<number> {
  const log = openRepositoryWithKeys(flags).rolloutLog(flags.bundle, version);
  const run = flags.run ?? (await log.findNewestGateReport());
  if (run === 0) {
    const text =
      `${flags.bundle} ${version} has no gate report; ` +
      `run: cube-agent gate --version ${version}`;
    throw new CubeError('NOT_FOUND', text);
  }
  const json = await log.readGateReport(run, 'json');
  // A killed gate may have stored only the JSON report.
  const report = JsonReader.parse(json, `report ${run}`).value as GateReport;
  await outputReport(
    { json, txt: renderTextReport(report), html: renderHtmlReport(report) },
    flags,
  );
  return EXIT_OK;
}

async function outputReport({ json, txt, html }: StoredReport, flags: GateFlags): Promise<void> {
  if (flags.html !== undefined && !flags.dryRun) replaceFile(flags.html, html);
  printLine((flags.json ? json : txt).trimEnd());
}
