/** `cube-agent gate`: golden rows through the new version and the active one, compared, judged and reported. */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import {
  type Command,
  EXIT_FAILED,
  EXIT_OK,
  EXIT_USAGE,
  integerBetween,
  nameOption,
} from '../../lib/platform/cli.ts';
import { replaceFile } from '../../lib/platform/files.ts';
import { ownerLeft } from '../../lib/platform/kept-process.ts';
import { print } from '../../lib/platform/text-table.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { GateReport as StoredReport } from '../../lib/repository/rollout-log.ts';
import type { GateOptions } from '../gate/gate.ts';
import { LIMIT_HELP } from '../gate/gate-limits.ts';
import type { GateReport } from '../gate/gate-report.ts';
import { reportPage } from '../gate/report-page.ts';
import { reportText } from '../gate/report-text.ts';
import { openWithKeys } from './keys.ts';
import {
  addTargetOptions,
  collectEndpoints,
  defaultAuthor,
  type TargetOptions,
} from './options.ts';

/** The gate could not run, which says nothing of the version: it may another time. */
const EXIT_NOT_RUN = 3;
/** What is wrong with how it was asked for, so that it never will. */
const WRONG_USE: ReadonlySet<ErrorCode> = new Set([
  ...(['INVALID_ARGUMENT', 'NOT_FOUND', 'TOO_LARGE', 'UNSUPPORTED', 'CORRUPT', 'DENIED'] as const),
]);

interface GateFlags extends TargetOptions {
  readonly version?: string;
  /** False for --no-against. */
  readonly against?: string | false;
  readonly golden?: string;
  readonly policy?: string;
  readonly limit: readonly string[];
  readonly fleet?: string;
  readonly candidate?: readonly string[];
  readonly baseline?: readonly string[];
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
Exit code: 0 passed, 1 failed, 2 it cannot run as it was asked for, 3 it could not run this time. What is behind -- goes to the serving processes.

Examples:
  cube-agent gate --repository /srv/models --bundle ctr-dnn --version 2 --fleet fleet.json
  cube-agent gate --repository /srv/models --bundle ctr-dnn --version 2 --against 1 \\
    --golden recorded/ctr.jsonl --limit aucDropMax=0.002 --limit latencyP99RatioMax=none
  cube-agent gate --repository /srv/models --bundle ctr-dnn --version 2 -- --store redis --redis-url redis://cache:6379
  cube-agent gate --repository /srv/models --bundle ctr-dnn --show 2 --html report.html

Limits (policy.json, cube-agent policy and --limit; default):
${LIMIT_HELP}`;

export function addGateCommand(program: Command): void {
  const command = addTargetOptions(program.command('gate'))
    .description('replay golden rows on a version and on the active one, and judge the difference')
    .argument('[flags...]', 'behind --: further flags of the serving processes')
    .option('--version <name>', 'the version to judge', nameOption('version'))
    .option(
      '--against <name>',
      "the version to compare with (default: the channel's)",
      nameOption('version'),
    )
    .option('--no-against', 'compare with none: only limits that need no other version hold')
    .option(
      '--golden <file>',
      "golden rows (default: the version's golden.jsonl); - is standard input",
    )
    .option(
      '--policy <file>',
      "limits (default: policy.json of the version, else the bundle's policy)",
    )
    .option('--limit <name=value>', 'a limit laid over them, or =none; once for each', collect, [])
    .option(
      '--fleet <file>',
      'take rows from its servers, which hold both versions (--store remote)',
    )
    .option('--candidate <host:port>', 'a serving process that holds the version', collectEndpoints)
    .option('--baseline <host:port>', 'one that holds the version compared with', collectEndpoints);
  addReplayOptions(command)
    .option('--by <who>', 'who; kept in the report', defaultAuthor())
    .option('--no-store', 'keep the report out of the repository')
    .option('--html <file>', 'write the report as a page there, too')
    .option('--json', 'print the report for programs')
    .option(
      '--show <version>',
      'run nothing: print the report that is stored',
      nameOption('version'),
    )
    .option('--run <n>', 'of --show: which one (default: the newest)', integerBetween(1, 10_000))
    .addHelpText('after', EXAMPLES)
    .action(async (servingFlags: string[], flags: GateFlags) => {
      process.exitCode = await orNotRun(() =>
        flags.show === undefined ? gate(flags, servingFlags) : show(flags, flags.show),
      );
    });
}

function addReplayOptions(command: Command): Command {
  return command
    .option('--rows <n>', 'of more golden rows a sample', integerBetween(1, 200_000), 10_000)
    .option('--rows-per-request <n>', 'rows of a request', integerBetween(1, 1_000), 16)
    .option('--rate <n>', 'requests a second to each version', integerBetween(1, 10_000), 50)
    .option('--requests <n>', 'at least, to each version', integerBetween(1, 1_000_000), 400)
    .option('--timeout-ms <n>', 'of a request', integerBetween(1, 600_000), 2_000)
    .option(
      '--ready-timeout-ms <n>',
      'until a serving process holds its version',
      integerBetween(1, 86_400_000),
      300_000,
    );
}

function collect(text: string, before: readonly string[]): string[] {
  return [...before, text];
}

/** 1 always means that the version failed. */
async function orNotRun(work: () => Promise<number>): Promise<number> {
  try {
    return await work();
  } catch (error) {
    const { code, message } = CubeError.from(error);
    process.stderr.write(`cube-agent: the gate could not run: ${message}\n`);
    return WRONG_USE.has(code) ? EXIT_USAGE : EXIT_NOT_RUN;
  }
}

async function gate(flags: GateFlags, servingFlags: readonly string[]): Promise<number> {
  const { version, bundle } = flags;
  if (version === undefined) throw new CubeError('INVALID_ARGUMENT', '--version is missing');
  const repository = openWithKeys(flags);
  const against = await versionAgainst(repository, flags, version);
  const told = new AbortController();
  const stop = (): void => told.abort();
  // A rollout that is killed while it runs the gate.
  void ownerLeft()?.then(stop);
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, stop);
  const { runGate } = await import('../gate/gate.ts');
  const report = await runGate({
    ...optionsOf(flags, servingFlags),
    ...{ repository, version, against, signal: told.signal },
  });
  const texts = {
    json: `${JSON.stringify(report)}\n`,
    txt: reportText(report),
    html: reportPage(report),
  };
  await hand(texts, flags);
  if (flags.store) {
    const run = await repository.rollout(bundle, version).putGateReport(texts);
    if (!flags.json) print(`stored as report ${run} of version ${version}`);
  }
  return report.verdict === 'pass' ? EXIT_OK : EXIT_FAILED;
}

function optionsOf(
  flags: GateFlags,
  servingFlags: readonly string[],
): Omit<GateOptions, 'repository' | 'version' | 'against' | 'signal'> {
  const { bundle, golden, policy, fleet, candidate, baseline, by } = flags;
  return {
    ...{ location: flags.repository, bundle, golden, policy, limits: flags.limit, by },
    ...{ rowsMax: flags.rows, rowsPerRequest: flags.rowsPerRequest },
    ...{ requestsPerSecond: flags.rate, requestsMin: flags.requests },
    ...{ timeoutMs: flags.timeoutMs, readyTimeoutMs: flags.readyTimeoutMs },
    store: { fleet, flags: servingFlags, trustedKeys: flags.trustedKeys },
    endpoints: { candidate: candidate?.at(-1), baseline: baseline?.at(-1) },
  };
}

/** What the channel points to; where that is the version itself, what it would go back to. */
async function versionAgainst(
  repository: Repository,
  { bundle, channel, against }: GateFlags,
  version: string,
): Promise<string | undefined> {
  if (against === false) return undefined;
  if (against !== undefined) return against;
  const { pointer, previous } = await repository.channel(bundle, channel);
  return pointer?.version === version ? previous?.version : pointer?.version;
}

async function show(flags: GateFlags, version: string): Promise<number> {
  const log = openWithKeys(flags).rollout(flags.bundle, version);
  const run = flags.run ?? (await log.newestGateReport());
  if (run === 0) {
    const text = `version ${version} of ${flags.bundle} has no report of a gate`;
    throw new CubeError('NOT_FOUND', text);
  }
  const json = await log.gateReport(run, 'json');
  // A gate that was killed may have stored no more than this.
  const report = JsonReader.parse(json, `report ${run}`).value as GateReport;
  await hand({ json, txt: reportText(report), html: reportPage(report) }, flags);
  return EXIT_OK;
}

async function hand({ json, txt, html }: StoredReport, flags: GateFlags): Promise<void> {
  if (flags.html !== undefined) replaceFile(flags.html, html);
  print((flags.json ? json : txt).trimEnd());
}
